"""Write jobs in our own schema."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable
from pathlib import Path

from hybrid.traces.plain import OWN_COLUMNS
from hybrid.traces.record import TraceError, TraceJob


def write_trace(path: Path, jobs: Iterable[TraceJob]) -> int:
    """Write `path` by its ending (.csv, .csv.gz, .parquet); the number of jobs written."""
    if path.suffix == ".parquet":
        from hybrid.traces.parquet import write

        return write(path, jobs)
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as text:
            return _write_csv(text, jobs)
    if path.name.endswith(".csv.gz"):
        with gzip.open(path, "wt", newline="", encoding="utf-8") as text:
            return _write_csv(text, jobs)
    raise TraceError(f"{path}: end the name in .csv, .csv.gz or .parquet")


def _write_csv(text: io.TextIOBase, jobs: Iterable[TraceJob]) -> int:
    out, written = csv.writer(text), 0
    out.writerow(OWN_COLUMNS)
    for job in jobs:
        out.writerow(["" if (v := getattr(job, name)) is None else v for name in OWN_COLUMNS])
        written += 1
    return written
