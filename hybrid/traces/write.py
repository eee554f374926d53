"""Write jobs in our own schema."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from hybrid.traces.plain import OWN_COLUMNS
from hybrid.traces.record import TraceError, TraceJob


def write_trace(path: Path, jobs: Iterable[TraceJob]) -> int:
    """Write `path` by its ending (.csv, .csv.gz, .parquet); the number of jobs written.

    Where `jobs` breaks off with an error, `path` is as it was before.
    """
    if not path.name.endswith((".csv", ".csv.gz", ".parquet")):
        raise TraceError(f"{path}: end the name in .csv, .csv.gz or .parquet")
    fresh = path.with_name(f".new-{path.name}")
    try:
        written = _write(fresh, jobs)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return written


def _write(path: Path, jobs: Iterable[TraceJob]) -> int:
    if path.suffix == ".parquet":
        from hybrid.traces.parquet import write

        return write(path, jobs)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="", encoding="utf-8") as text:
        return _write_csv(cast("io.TextIOBase", text), jobs)


def _write_csv(text: io.TextIOBase, jobs: Iterable[TraceJob]) -> int:
    out, written = csv.writer(text), 0
    out.writerow(OWN_COLUMNS)
    for job in jobs:
        out.writerow(["" if (v := getattr(job, name)) is None else v for name in OWN_COLUMNS])
        written += 1
    return written
