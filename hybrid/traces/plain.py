"""Formats that are one row per job with one column per fact: SWF, the public GPU traces, ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC

from hybrid.traces.record import Ended, RowError, TraceJob
from hybrid.traces.slurm import ended_of
from hybrid.traces.values import Row, known, moment, number, optional, whole

#: The columns of the Standard Workload Format (Feitelson), in order.
SWF_COLUMNS = [
    "job",
    "submit",
    "wait",
    "runtime",
    "processors",
    "cpu_time",
    "memory",
    "requested_processors",
    "requested_time",
    "requested_memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding",
    "think_time",
]

#: SWF status → how it ended; 5 is cancelled, perhaps before it started.
_SWF_STATUS = {"0": Ended.FAILED, "1": Ended.COMPLETED, "5": Ended.CANCELLED}

OWN_COLUMNS = tuple(f.name for f in fields(TraceJob))


def _runtime(seconds: float) -> float:
    if seconds <= 0:
        raise RowError("runtime is not above zero")
    return seconds


def own(row: Row) -> TraceJob:
    """Our own schema, as `hybrid trace import` writes it: the fields of `TraceJob`."""
    try:
        ended = Ended(known(row.get("ended")) or Ended.UNKNOWN)
    except ValueError:
        raise RowError(f"ended {row.get('ended')} is not one of {', '.join(Ended)}") from None
    start, end = known(row.get("start")), known(row.get("end"))
    if start is not None and end is not None and float(end) < float(start):
        raise RowError("end before start")
    return TraceJob(
        id=known(row.get("id")) or "",
        submit=number(row, "submit"),
        runtime_seconds=_runtime(number(row, "runtime_seconds")),
        gpus=whole(row, "gpus"),
        user=row.get("user") or "",
        project=row.get("project") or "",
        partition=row.get("partition") or "",
        name=row.get("name") or "",
        start=None if start is None else float(start),
        end=None if end is None else float(end),
        nodes=max(1, whole(row, "nodes", 1)),
        cpus=number(row, "cpus", 0.0),
        memory_bytes=whole(row, "memory_bytes", 0),
        gpu_model=known(row.get("gpu_model")),
        limit_seconds=optional(row, "limit_seconds"),
        ended=ended,
    )


def swf(row: Row) -> TraceJob:
    """Processors count as cards: SWF knows no GPUs. -1 means *not known*."""
    processors = optional(row, "processors") or optional(row, "requested_processors")
    if processors is None:
        raise RowError("processors is missing")
    submit, wait = number(row, "submit"), number(row, "wait")
    runtime = _runtime(number(row, "runtime"))
    start = submit + wait if wait >= 0 else None
    return TraceJob(
        id=row["job"],
        submit=submit,
        runtime_seconds=runtime,
        gpus=int(processors),
        user=row.get("user") or "",
        project=row.get("group") or "",
        partition=row.get("queue") or "",
        name=row.get("executable") or "",
        start=start,
        end=None if start is None else start + runtime,
        cpus=processors,
        limit_seconds=optional(row, "requested_time"),
        ended=_SWF_STATUS.get(row.get("status") or "", Ended.UNKNOWN),
    )


def drac(row: Row) -> TraceJob:
    """The extract of the Alliance Canada clusters in slurm-queue-time-pred."""
    start, end = number(row, "start_s"), number(row, "end_s")
    if end < start:
        raise RowError("end before start")
    ended = ended_of(row["state"])
    if ended is None:
        raise RowError("the job never ran")
    memory = number(row, "mem_mb", 0.0)
    return TraceJob(
        id=f"{row['cluster']}-{row['job_id']}",
        submit=number(row, "submit_s"),
        runtime_seconds=_runtime(number(row, "runtime_s")),
        gpus=whole(row, "gpus"),
        user=f"{row['cluster']}-{row['user']}",
        partition=row["partition"],
        start=start,
        end=end,
        nodes=max(1, whole(row, "nodes", 1)),
        cpus=number(row, "cpus", 0.0),
        memory_bytes=int(memory) << 20,
        limit_seconds=optional(row, "time_limit_s"),
        ended=ended,
    )


def philly(row: Row) -> TraceJob:
    """Microsoft's Philly as derived by Starburst; the virtual cluster is the only identity."""
    at, _ = moment(row["timestamp"], UTC)
    return TraceJob(
        id="",
        submit=at,
        runtime_seconds=_runtime(float(int(number(row, "duration")))),
        gpus=whole(row, "num_gpus"),
        user=row.get("cluster") or "",
    )


def openb(row: Row) -> TraceJob:
    """Alibaba's GPU pods of 2023. A share of a card (`gpu_milli` < 1000) counts as one card."""
    if known(row.get("scheduled_time")) is None:
        raise RowError("the job never ran")
    start, end = number(row, "scheduled_time"), number(row, "deletion_time")
    if end < start:
        raise RowError("end before start")
    phase = row.get("pod_phase") or ""
    ended = {"Succeeded": Ended.COMPLETED, "Failed": Ended.FAILED}.get(phase, Ended.UNKNOWN)
    return TraceJob(
        id=row["name"],
        submit=number(row, "creation_time"),
        runtime_seconds=_runtime(end - start),
        gpus=whole(row, "num_gpu"),
        project=row.get("qos") or "",
        start=start,
        end=end,
        cpus=number(row, "cpu_milli", 0.0) / 1000,
        memory_bytes=int(number(row, "memory_mib", 0.0)) << 20,
        gpu_model=known((row.get("gpu_spec") or "").split("|")[0]),
        ended=ended,
    )


def starburst(row: Row) -> TraceJob:
    """The 500-job instances of the Starburst artifact: hours since the first arrival."""
    return TraceJob(
        id=row["job_id"],
        submit=number(row, "arrival_h") * 3600,
        runtime_seconds=_runtime(number(row, "runtime_h") * 3600),
        gpus=whole(row, "gpus"),
        ended=Ended.COMPLETED,
    )


RowReader = Callable[[Row], TraceJob]
