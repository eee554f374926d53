"""Slurm's accounting: ``sacct --parsable2`` with a header line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, tzinfo

from hybrid.traces.record import Ended, ReadReport, RowError, TraceError, TraceJob
from hybrid.traces.values import Row, clock_seconds, known, moment, size_bytes

#: What a trace must have; `hybrid trace import --help` shows the command that writes it.
REQUIRED = ("Submit", "Start", "State")
COMMAND = (
    "sacct --allusers --parsable2 --duplicates --starttime 2026-01-01 --format "
    "JobIDRaw,JobID,User,Account,Partition,JobName,Submit,Start,End,ElapsedRaw,State,"
    "AllocTRES,ReqTRES,NNodes,NCPUS,ReqMem,TimelimitRaw"
)

#: Slurm's state (its first word) → how the run ended; None: it never ran.
_STATES: dict[str, Ended | None] = {
    "COMPLETED": Ended.COMPLETED,
    "FAILED": Ended.FAILED,
    "OUT_OF_MEMORY": Ended.FAILED,
    "CANCELLED": Ended.CANCELLED,
    "TIMEOUT": Ended.TIMEOUT,
    "DEADLINE": Ended.TIMEOUT,
    "NODE_FAIL": Ended.LOST,
    "BOOT_FAIL": Ended.LOST,
    "PREEMPTED": Ended.LOST,
    "REQUEUED": Ended.LOST,
    "REVOKED": Ended.LOST,
    "RESIZING": Ended.UNKNOWN,
    "SUSPENDED": Ended.UNKNOWN,
    "STOPPED": Ended.UNKNOWN,
    "RUNNING": Ended.UNKNOWN,
    "COMPLETING": Ended.UNKNOWN,
    "CONFIGURING": None,
    "PENDING": None,
    "REQUEUE_FED": None,
    "REQUEUE_HOLD": None,
    "SPECIAL_EXIT": None,
}

_GPU = re.compile(r"gres/gpu(?::([^=]+))?=(\d+)")


def ended_of(state: str) -> Ended | None:
    """``CANCELLED by 1000`` → `CANCELLED`; None for a job that never ran."""
    word = state.split()[0].rstrip("+") if state.split() else ""
    try:
        return _STATES[word]
    except KeyError:
        raise RowError(f"State {word or 'empty'} is not one of Slurm's") from None


def gpus_of(tres: str) -> tuple[int, str | None]:
    """The cards in a TRES list, and their model where it names one.

    Slurm lists the total and each model beside it (``gres/gpu=4,gres/gpu:a100=4``); sites that
    account only one of the two have only that.
    """
    total, by_model = 0, {}
    for model, count in _GPU.findall(tres):
        if model:
            by_model[model] = int(count)
        else:
            total = int(count)
    models = max(by_model, key=lambda m: by_model[m]) if by_model else None
    return max(total, sum(by_model.values())), models


def _tres(text: str, name: str) -> str | None:
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key == name:
            return value
    return None


@dataclass(slots=True)
class SacctReader:
    """Rows of sacct as jobs. `zone` is meant for moments that name none.

    Steps (``12.batch``) are dropped: the job's own row has the whole. With ``--duplicates`` a
    requeued job has a row per run; each is a run of its own.
    """

    report: ReadReport
    zone: tzinfo = UTC
    _zones: set[bool] = field(default_factory=set)
    _runs: dict[str, int] = field(default_factory=dict)

    def job(self, row: Row) -> TraceJob:
        raw_id = known(row.get("JobIDRaw")) or known(row.get("JobID"))
        if raw_id is None:
            raise RowError("JobID is missing")
        if "." in raw_id:
            raise RowError("a step, its job has a row of its own")
        ended = ended_of(row.get("State") or "")
        start = self._moment(row, "Start")
        if ended is None or start is None:
            raise RowError("the job never ran")
        submit = self._moment(row, "Submit")
        if submit is None:
            raise RowError("Submit is missing")
        end = self._moment(row, "End")
        if end is not None and end < start:
            raise RowError("end before start")
        tres = known(row.get("AllocTRES")) or known(row.get("ReqTRES")) or ""
        gpus, model = gpus_of(tres)
        return TraceJob(
            id=self._run_id(raw_id, start),
            submit=min(submit, start),
            runtime_seconds=self._elapsed(row, start, end),
            gpus=gpus,
            user=row.get("User") or "",
            project=row.get("Account") or "",
            partition=row.get("Partition") or "",
            name=row.get("JobName") or "",
            start=start,
            end=end,
            nodes=max(1, int(known(row.get("NNodes")) or _tres(tres, "node") or 1)),
            cpus=float(known(row.get("NCPUS")) or _tres(tres, "cpu") or 0),
            memory_bytes=self._memory(row, tres),
            gpu_model=model,
            limit_seconds=self._limit(row),
            ended=ended,
        )

    def _run_id(self, raw_id: str, start: float) -> str:
        """A requeued job comes again with the same id and another start."""
        key = f"{raw_id}@{start:.0f}"
        if key in self._runs:
            raise RowError("the same run twice")
        self._runs[key] = 1
        run = self._runs[raw_id] = self._runs.get(raw_id, 0) + 1
        return raw_id if run == 1 else f"{raw_id}#{run}"

    def _moment(self, row: Row, column: str) -> float | None:
        text = known(row.get(column))
        if text is None:
            return None
        at, named = moment(text, self.zone)
        self._zones.add(named)
        if len(self._zones) > 1:
            raise TraceError(
                f"{self.report.source}: some moments name a time zone and others do not, so they "
                "cannot be compared; run sacct with one SLURM_TIME_FORMAT"
            )
        if not named:
            self.report.note(f"moments name no zone; read as {self.zone} (--timezone)")
        return at

    def _elapsed(self, row: Row, start: float, end: float | None) -> float:
        raw, clock = known(row.get("ElapsedRaw")), known(row.get("Elapsed"))
        if raw is not None:
            seconds = float(raw)
        elif clock is not None:
            seconds = clock_seconds(clock)
        elif end is not None:
            seconds = end - start
        else:
            raise RowError("neither Elapsed nor End is known")
        if seconds <= 0:
            raise RowError("runtime is not above zero")
        return seconds

    def _limit(self, row: Row) -> float | None:
        raw, clock = known(row.get("TimelimitRaw")), known(row.get("Timelimit"))
        if raw is not None and raw.isdigit():
            return float(raw) * 60
        if clock is not None and clock[0].isdigit():
            return clock_seconds(clock)
        return None

    def _memory(self, row: Row, tres: str) -> int:
        text = _tres(tres, "mem")
        return size_bytes(text) if text else 0
