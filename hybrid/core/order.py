"""Who comes first."""

from __future__ import annotations

from collections.abc import Iterable

from hybrid.core.model import WaitingJob


def queue_order(jobs: Iterable[WaitingJob]) -> list[WaitingJob]:
    """FIFO within priority. A job that is tried again keeps its place: what counts is when it
    was submitted."""
    return sorted(jobs, key=lambda j: (-j.requirements.priority, j.submitted_at, j.id))
