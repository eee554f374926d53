"""Strategies that look at nothing but the time a job has waited."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from hybrid.core.burst import Answer, Question


@dataclass(frozen=True, slots=True)
class ConstantWait:
    """Burst after a fixed time in the queue."""

    max_wait_seconds: float = field(
        default=1800.0,
        metadata={"doc": "A job that has waited this long is rented.", "unit": "seconds"},
    )

    def decide(self, question: Question) -> Answer:
        left = self.max_wait_seconds - question.waited_seconds
        if left > 0:
            due = question.now + timedelta(seconds=left)
            return Answer(
                False,
                f"it waits up to {self.max_wait_seconds:g} s for the pool first",
                due,
            )
        return Answer(
            True,
            f"it has waited {question.waited_seconds:.0f} s, longer than max_wait_seconds = "
            f"{self.max_wait_seconds:g}",
        )


@dataclass(frozen=True, slots=True)
class Never:
    """Rent nothing (jobs that ask for hybrid.place=cloud excepted)."""

    def decide(self, question: Question) -> Answer:
        return Answer(False, "the policy never rents")


@dataclass(frozen=True, slots=True)
class BurstNow:
    """Rent at once whatever the pool cannot start now."""

    def decide(self, question: Question) -> Answer:
        return Answer(True, "the pool cannot start it now and the policy does not wait")
