"""The one schema that every reader produces."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Ended(StrEnum):
    """How a run ended. All but `COMPLETED` and `FAILED` are censored: the job would have run on
    for a time nobody knows."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a history. Moments are seconds since the Unix epoch in UTC (or since the
    trace's own first moment where it has no dates); "" and None mean *unknown*.

    `runtime_seconds` is the time the job ran, > 0. `gpus` counts the whole gang, `nodes` the
    machines it ran on; `cpus` and `memory_bytes` are of the whole job.
    """

    id: str
    submit: float
    runtime_seconds: float
    gpus: int
    user: str = ""
    project: str = ""
    partition: str = ""
    name: str = ""
    start: float | None = None
    end: float | None = None
    nodes: int = 1
    cpus: float = 0.0
    memory_bytes: int = 0
    gpu_model: str | None = None
    limit_seconds: float | None = None
    ended: Ended = Ended.UNKNOWN


class TraceError(Exception):
    """A history that cannot be read. The message says which file, what, and what would do."""


#: The cell with which a splitter says why a row cannot be used.
DROPPED = "\0dropped"


class RowError(Exception):
    """One row that cannot be used; the message is the reason it is counted under."""


@dataclass(slots=True)
class ReadReport:
    """What a reader kept and dropped, and why; complete once its rows are consumed."""

    source: str
    format: str = ""
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.kept + self.dropped.total()

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)
