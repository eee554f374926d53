"""Open a history of any known format and stream its jobs."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from itertools import chain
from pathlib import Path
from typing import IO, Literal, cast

from hybrid.traces import plain, rayjob
from hybrid.traces.record import DROPPED, ReadReport, RowError, TraceError, TraceJob
from hybrid.traces.slurm import COMMAND, REQUIRED, SacctReader
from hybrid.traces.values import Row

#: sacct job names may be long; csv's own limit is 128 KiB a cell.
csv.field_size_limit(16 << 20)


@dataclass(frozen=True, slots=True)
class Format:
    """How a file is told apart and read: by its `columns`, which must all be in the header line,
    or by what `begins` says of its first line. `rows` splits the file, `reader` reads a row."""

    name: str
    reader: Callable[[ReadReport, tzinfo], plain.RowReader]
    columns: tuple[str, ...] = ()
    delimiter: str = ","
    begins: Callable[[str], bool] = lambda first: False
    rows: Callable[[Path, Iterator[str]], Iterator[Row]] | None = None


def _simple(read: plain.RowReader) -> Callable[[ReadReport, tzinfo], plain.RowReader]:
    return lambda report, zone: read


def _is_swf(first: str) -> bool:
    cells = first.split()
    try:
        return first.startswith(";") or len([float(c) for c in cells]) == len(plain.SWF_COLUMNS)
    except ValueError:
        return False


def _swf_rows(path: Path, lines: Iterator[str]) -> Iterator[Row]:
    for line in lines:
        if line.strip() and not line.startswith(";"):
            yield dict(zip(plain.SWF_COLUMNS, line.split(), strict=False))


FORMATS = {
    fmt.name: fmt
    for fmt in (
        Format("sacct", lambda r, z: SacctReader(r, z).job, REQUIRED, "|"),
        Format("rayjob", _simple(plain.own), begins=rayjob.is_json, rows=rayjob.read_rows),
        Format("swf", _simple(plain.swf), begins=_is_swf, rows=_swf_rows),
        Format("hybrid", _simple(plain.own), ("submit", "runtime_seconds", "gpus")),
        Format(
            "drac",
            _simple(plain.drac),
            ("cluster", "job_id", "submit_s", "start_s", "end_s", "runtime_s", "state"),
        ),
        Format("philly", _simple(plain.philly), ("timestamp", "duration", "num_gpus")),
        Format(
            "openb",
            _simple(plain.openb),
            ("num_gpu", "creation_time", "deletion_time", "scheduled_time"),
        ),
        Format("starburst", _simple(plain.starburst), ("job_id", "arrival_h", "runtime_h", "gpus")),
    )
}


@dataclass(slots=True)
class Trace:
    """An open history: iterate `jobs` once; `report` is complete afterwards."""

    jobs: Iterator[TraceJob]
    report: ReadReport


def open_trace(path: Path | str, format: str = "auto", zone: tzinfo = UTC) -> Trace:
    """Stream the jobs of `path` (plain, .gz, or .parquet), in the file's own order.

    Raises `TraceError` where the file is absent, of no known format, or breaks off (a truncated
    gzip); a row that cannot be used is dropped and counted in the report.
    """
    path = Path(path)
    if not path.is_file():
        raise TraceError(f"there is no file {path}")
    report = ReadReport(str(path))
    if path.suffix == ".parquet":
        from hybrid.traces.parquet import read_rows

        report.format = "hybrid"
        return Trace(_jobs(read_rows(path), plain.own, report), report)
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path} is empty")
    chosen = _choose(path, first, format)
    report.format = chosen.name
    lines = chain([first], lines)
    rows = chosen.rows(path, lines) if chosen.rows else _table_rows(lines, chosen.delimiter)
    return Trace(_jobs(rows, chosen.reader(report, zone), report), report)


def read_trace(
    path: Path | str, format: str = "auto", zone: tzinfo = UTC
) -> tuple[list[TraceJob], ReadReport]:
    """All jobs, in order of submission."""
    trace = open_trace(path, format, zone)
    jobs = sorted(trace.jobs, key=lambda job: job.submit)
    return jobs, trace.report


def _choose(path: Path, first: str, wanted: str) -> Format:
    if wanted != "auto":
        if wanted not in FORMATS:
            raise TraceError(f"no format {wanted!r}; known: {', '.join(FORMATS)}")
        chosen = FORMATS[wanted]
        missing = [c for c in chosen.columns if c not in _header(first, chosen.delimiter)]
        if missing:
            raise TraceError(f"{path} lacks the column(s) {', '.join(missing)} of {wanted}")
        return chosen
    for fmt in FORMATS.values():
        named = fmt.columns and set(fmt.columns) <= set(_header(first, fmt.delimiter))
        if named or fmt.begins(first):
            return fmt
    near = sorted(
        (fmt for fmt in FORMATS.values() if fmt.columns),
        key=lambda f: -len(set(f.columns) & set(_header(first, f.delimiter))),
    )[0]
    lacking = [c for c in near.columns if c not in _header(first, near.delimiter)]
    raise TraceError(
        f"{path} is of no known format (its first line is {first.strip()[:80]!r}). Nearest is "
        f"{near.name}, which also needs {', '.join(lacking)}. Known: {', '.join(FORMATS)}. "
        f"For Slurm: {COMMAND}"
    )


def _header(first: str, delimiter: str) -> list[str]:
    return first.lstrip("\ufeff").rstrip("\r\n").split(delimiter)


def _lines(path: Path) -> Iterator[str]:
    opened: IO[bytes] = path.open("rb")
    with opened as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        source = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw
        text = io.TextIOWrapper(source, encoding="utf-8", errors="replace", newline="")
        number = 0
        try:
            for line in text:
                number += 1
                yield line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(
                f"{path} breaks off after line {number} ({error}); copy it again"
            ) from None


def _table_rows(lines: Iterator[str], delimiter: str) -> Iterator[Row]:
    header = _header(next(lines), delimiter)
    # Slurm quotes nothing: a quotation mark in a job's name is part of it.
    quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "|" else csv.QUOTE_MINIMAL
    for cells in csv.reader(lines, delimiter=delimiter, quoting=quoting):
        if len(cells) == len(header):
            yield dict(zip(header, cells, strict=True))
        elif cells:
            yield {DROPPED: "the row has another number of cells than the header"}


def _jobs(rows: Iterable[Row], read: plain.RowReader, report: ReadReport) -> Iterator[TraceJob]:
    seen: set[int] = set()
    for number, row in enumerate(rows, start=1):
        try:
            if DROPPED in row:
                raise RowError(row[DROPPED])
            job = _identified(read(row), number, seen)
        except RowError as error:
            report.dropped[str(error)] += 1
        except (KeyError, ValueError) as error:
            report.dropped[f"cannot be read ({type(error).__name__})"] += 1
        else:
            report.kept += 1
            yield job


def _identified(job: TraceJob, number: int, seen: set[int]) -> TraceJob:
    if not job.id:
        return replace(job, id=f"row-{number}")
    mark = hash(job.id)
    if mark in seen:
        raise RowError("duplicate id")
    seen.add(mark)
    return job
