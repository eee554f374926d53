"""The states of jobs, attempts and leases, and every transition that is allowed.

The three tables at the end of this module are the whole truth: what is not in them is refused
with `IllegalTransition`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    """Held by Hybrid; waits for a lease."""
    STARTING = "starting"
    """Has a lease that is being made ready for it, or a warm one it is being posted to."""
    RUNNING = "running"
    """Its driver was accepted by the lease's Ray cluster."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def terminal(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)


class AttemptState(StrEnum):
    SUBMITTING = "submitting"
    """About to be posted to the lease's cluster (the intent, written before the call)."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The user's program failed (or could not be set up): not retried unless asked."""
    STOPPED = "stopped"
    LOST = "lost"
    """The infrastructure under it went away: the job is tried again."""

    @property
    def terminal(self) -> bool:
        return self not in (AttemptState.SUBMITTING, AttemptState.RUNNING)


class LeaseState(StrEnum):
    REQUESTED = "requested"
    """Intent written; the reservation or launch may or may not have happened."""
    BOOTING = "booting"
    """Cards reserved or instance launched; its Ray cluster is coming up."""
    READY = "ready"
    """Warm: up, gate passed, serving no job."""
    BUSY = "busy"
    """Serving one attempt."""
    RELEASING = "releasing"
    """Being torn down; may still cost money."""
    RELEASED = "released"
    """Observed gone."""

    @property
    def open(self) -> bool:
        return self is not LeaseState.RELEASED


State = JobState | AttemptState | LeaseState


class IllegalTransition(Exception):
    """An entity was asked to move along an edge that its transition table does not have."""

    def __init__(self, entity: str, entity_id: str, current: State, target: State) -> None:
        self.entity, self.entity_id = entity, entity_id
        self.current, self.target = current, target
        allowed = ", ".join(sorted(TRANSITIONS[type(current)].get(current, ()))) or "none (final)"
        super().__init__(
            f"{entity} {entity_id} is {current} and cannot become {target}; allowed: {allowed}"
        )


JOB_TRANSITIONS: Mapping[State, frozenset[State]] = {
    JobState.QUEUED: frozenset({JobState.STARTING, JobState.STOPPED, JobState.FAILED}),
    JobState.STARTING: frozenset(
        {JobState.RUNNING, JobState.QUEUED, JobState.STOPPED, JobState.FAILED}
    ),
    JobState.RUNNING: frozenset(
        {JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED, JobState.QUEUED}
    ),
}

ATTEMPT_TRANSITIONS: Mapping[State, frozenset[State]] = {
    AttemptState.SUBMITTING: frozenset(
        {AttemptState.RUNNING, AttemptState.FAILED, AttemptState.LOST, AttemptState.STOPPED}
    ),
    AttemptState.RUNNING: frozenset(
        {AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.STOPPED, AttemptState.LOST}
    ),
}

LEASE_TRANSITIONS: Mapping[State, frozenset[State]] = {
    LeaseState.REQUESTED: frozenset({LeaseState.BOOTING, LeaseState.RELEASING}),
    LeaseState.BOOTING: frozenset({LeaseState.READY, LeaseState.RELEASING}),
    LeaseState.READY: frozenset({LeaseState.BUSY, LeaseState.RELEASING}),
    LeaseState.BUSY: frozenset({LeaseState.READY, LeaseState.RELEASING}),
    LeaseState.RELEASING: frozenset({LeaseState.RELEASED}),
}

TRANSITIONS: Mapping[type, Mapping[State, frozenset[State]]] = {
    JobState: JOB_TRANSITIONS,
    AttemptState: ATTEMPT_TRANSITIONS,
    LeaseState: LEASE_TRANSITIONS,
}


def check_transition(entity: str, entity_id: str, current: State, target: State) -> None:
    """Raise `IllegalTransition` unless `current` → `target` is in the entity's table."""
    if target not in TRANSITIONS[type(current)].get(current, frozenset()):
        raise IllegalTransition(entity, entity_id, current, target)


#: Ray's five statuses; its client crashes on any other word.
RAY_STATUS: Mapping[JobState, str] = {
    JobState.QUEUED: "PENDING",
    JobState.STARTING: "PENDING",
    JobState.RUNNING: "RUNNING",
    JobState.SUCCEEDED: "SUCCEEDED",
    JobState.FAILED: "FAILED",
    JobState.STOPPED: "STOPPED",
}
