"""Our own schema as Parquet, where the extra ``parquet`` (pyarrow) is installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from hybrid.traces.record import TraceError, TraceJob

_BATCH = 50_000


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise TraceError(
            "Parquet needs pyarrow: pip install 'hybrid-burst[parquet]' (or use .csv)"
        ) from None
    return pyarrow


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows as text cells, as a CSV of the same schema would give them."""
    arrow = _pyarrow()
    try:
        opened = arrow.parquet.ParquetFile(path)
    except arrow.ArrowInvalid as error:
        raise TraceError(f"{path} is no Parquet file: {error}") from None
    missing = {"submit", "runtime_seconds", "gpus"} - set(opened.schema_arrow.names)
    if missing:
        raise TraceError(f"{path} lacks the column(s) {', '.join(sorted(missing))}")
    for batch in opened.iter_batches(_BATCH):
        for row in batch.to_pylist():
            yield {key: "" if value is None else str(value) for key, value in row.items()}


def write(path: Path, jobs: Iterable[TraceJob]) -> int:
    """Write all jobs; the number written."""
    arrow = _pyarrow()
    text, real, whole = arrow.string(), arrow.float64(), arrow.int64()
    schema = arrow.schema(
        [
            ("id", text),
            ("submit", real),
            ("runtime_seconds", real),
            ("gpus", whole),
            ("user", text),
            ("project", text),
            ("partition", text),
            ("name", text),
            ("start", real),
            ("end", real),
            ("nodes", whole),
            ("cpus", real),
            ("memory_bytes", whole),
            ("gpu_model", text),
            ("limit_seconds", real),
            ("ended", text),
        ]
    )
    rows, written = iter(jobs), 0
    with arrow.parquet.ParquetWriter(path, schema) as out:
        while part := [asdict(job) for job in islice(rows, _BATCH)]:
            out.write_table(arrow.Table.from_pylist(part, schema))
            written += len(part)
    return written
