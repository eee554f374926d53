"""Jobs and their attempts: creation, look-up and the only ways their state changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import func, insert
from sqlmodel import Session, col, select

from hybrid.core.lifecycle import AttemptState, JobState, check_transition
from hybrid.store.ids import new_id
from hybrid.store.journal import record_transition
from hybrid.store.tables import Attempt, Event, Job, Json, table_of

LIVE = tuple(state for state in JobState if not state.terminal)
LIVE_ATTEMPTS = tuple(state for state in AttemptState if not state.terminal)


class JobExists(Exception):
    """A submission_id names one job for life; this one is taken."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"Job with submission_id {job_id} already exists. Please use a different submission_id."
        )


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as it is submitted: the columns of `Job` that its run does not fill."""

    id: str
    user: str
    project: str
    entrypoint: str
    requirements: Json
    submitted_at: datetime
    runtime_env: Json
    user_metadata: Mapping[str, str]
    environment: str = ""
    packages: Sequence[str] = ()
    priority: int = 0
    entrypoint_num_cpus: float | None = None
    entrypoint_num_gpus: float | None = None
    entrypoint_memory: int | None = None
    entrypoint_resources: Mapping[str, float] | None = None
    entrypoint_label_selector: Mapping[str, str] | None = None


_NEW_COLUMNS = tuple(field.name for field in fields(NewJob))
_AT_FIRST = {
    "state": JobState.QUEUED,
    "message": "Taken up; waits for the next planning round.",
    "stop_reason": "",
    "attempts": 0,
    "boot_failures": 0,
}


def add_job(session: Session, job: NewJob) -> None:
    """Acknowledge a job: once the transaction ends, it cannot be lost. Raises `JobExists`."""
    if add_jobs(session, [job]):
        raise JobExists(job.id)


def add_jobs(session: Session, jobs: Sequence[NewJob]) -> set[int]:
    """Acknowledge many jobs with one statement per table; the positions of those whose id is
    taken (by an older job, or earlier in `jobs`)."""
    names = known_ids(session, [job.id for job in jobs])
    taken: set[int] = set()
    new: list[NewJob] = []
    for position, job in enumerate(jobs):
        if job.id in names:
            taken.add(position)
        else:
            names.add(job.id)
            new.append(job)
    if new:
        session.execute(insert(table_of(Job)), [_columns(job) for job in new])
        session.execute(
            insert(table_of(Event)),
            [
                {
                    "at": job.submitted_at,
                    "entity": "job",
                    "entity_id": job.id,
                    "job_id": job.id,
                    "from_state": "",
                    "to_state": str(JobState.QUEUED),
                    "cause": "submitted",
                }
                for job in new
            ],
        )
        session.info["steps"] += [f"job:{JobState.QUEUED}"] * len(new)
    return taken


def _columns(job: NewJob) -> dict[str, object]:
    given = {name: getattr(job, name) for name in _NEW_COLUMNS}
    return {**given, **_AT_FIRST, "queued_at": job.submitted_at}


def find_job(session: Session, job_or_ray_id: str) -> Job | None:
    """By submission_id, or by the id that Ray gave its driver (the newest that had it)."""
    job = session.get(Job, job_or_ray_id)
    if job is None:
        query = (
            select(Job)
            .where(Job.ray_job_id == job_or_ray_id)
            .order_by(col(Job.submitted_at).desc())
        )
        job = session.exec(query).first()
    return job


def jobs_in(session: Session, states: Sequence[JobState] = tuple(JobState)) -> Sequence[Job]:
    query = select(Job).where(col(Job.state).in_(states)).order_by(col(Job.submitted_at), Job.id)
    return session.exec(query).all()


def live_jobs(session: Session, ids: Collection[str]) -> dict[str, Job]:
    """Those of `ids` that have not ended, by id."""
    query = select(Job).where(col(Job.id).in_(ids)).where(col(Job.state).in_(LIVE))
    return {job.id: job for job in session.exec(query)}


def live_counts(session: Session) -> dict[str, int]:
    """How many jobs that have not ended are in each state."""
    query = (
        select(Job.state, func.count())
        .where(col(Job.state).in_(LIVE))
        .group_by(col(Job.state))
        .order_by(col(Job.state))
    )
    return {str(state): count for state, count in session.exec(query)}


def packages_needed(session: Session) -> frozenset[str]:
    """The packages that a live job may still fetch."""
    query = select(Job.packages).where(col(Job.state).in_(LIVE))
    return frozenset(name for names in session.exec(query) for name in names)


def queued_jobs(session: Session, ids: Collection[str]) -> Sequence[Job]:
    """Those of `ids` that are queued now and that nobody has asked to stop."""
    if not ids:
        return []
    query = (
        select(Job)
        .where(col(Job.id).in_(ids))
        .where(Job.state == JobState.QUEUED)
        .where(col(Job.stop_requested_at).is_(None))
        .order_by(Job.id)
    )
    return session.exec(query).all()


def known_ids(session: Session, ids: Collection[str]) -> set[str]:
    """Those of `ids` that a job has already."""
    return set(session.exec(select(Job.id).where(col(Job.id).in_(ids))))


def move_job(session: Session, job: Job, target: JobState, cause: str, at: datetime) -> None:
    """Move a job along its transition table and journal it."""
    check_transition("job", job.id, job.state, target)
    source, job.state = job.state, target
    if target is JobState.RUNNING and job.started_at is None:
        job.started_at = at
    if target is JobState.QUEUED:
        job.queued_at, job.lease_id = at, None
    if target.terminal:
        job.ended_at = at
    session.add(job)
    record_transition(session, "job", job.id, source, target, cause, at, job.id)


def request_stop(session: Session, job: Job, reason: str, at: datetime) -> bool:
    """Ask for a stop; False when the job is over. A queued job stops at once."""
    if job.state.terminal:
        return False
    if job.stop_requested_at is None:
        job.stop_requested_at, job.stop_reason = at, reason
        session.info["steps"].append("job:stop-requested")
    if job.state is JobState.QUEUED:
        job.message = reason
        move_job(session, job, JobState.STOPPED, reason, at)
    session.add(job)
    return True


def delete_job(session: Session, job: Job) -> None:
    """Forget a finished job. Its ledger lines and events stay."""
    if not job.state.terminal:
        raise JobNotTerminal(job.id, job.state)
    session.delete(job)
    session.info["steps"].append("job:deleted")


class JobNotTerminal(Exception):
    """A job that has not ended cannot be deleted: stop it first."""

    def __init__(self, job_id: str, state: JobState) -> None:
        super().__init__(
            f"Attempted to delete job '{job_id}', but it is in a non-terminal state {state}."
        )


def open_attempt(session: Session, job: Job, lease_id: str, at: datetime) -> Attempt:
    """Write the intent to post `job` to the lease's cluster.

    The first attempt carries the job's own id; later ones get a suffix, since a Ray cluster
    never forgets a submission_id.
    """
    job.attempts += 1
    suffix = "" if job.attempts == 1 else f"-attempt{job.attempts}"
    attempt = Attempt(
        id=new_id("attempt", at),
        job_id=job.id,
        number=job.attempts,
        lease_id=lease_id,
        ray_submission_id=job.id + suffix,
        state=AttemptState.SUBMITTING,
        created_at=at,
    )
    session.add(attempt)
    session.add(job)
    record_transition(
        session, "attempt", attempt.id, None, attempt.state, f"on lease {lease_id}", at, job.id
    )
    return attempt


def move_attempt(
    session: Session, attempt: Attempt, target: AttemptState, cause: str, at: datetime
) -> None:
    check_transition("attempt", attempt.id, attempt.state, target)
    source, attempt.state = attempt.state, target
    if target is AttemptState.RUNNING:
        attempt.started_at = at
    if target.terminal:
        attempt.ended_at, attempt.cause = at, cause
    session.add(attempt)
    record_transition(session, "attempt", attempt.id, source, target, cause, at, attempt.job_id)


def attempts_of(session: Session, job_id: str) -> Sequence[Attempt]:
    query = select(Attempt).where(Attempt.job_id == job_id).order_by(col(Attempt.number))
    return session.exec(query).all()


def live_attempt_on(session: Session, lease_id: str) -> Attempt | None:
    query = (
        select(Attempt)
        .where(Attempt.lease_id == lease_id)
        .where(col(Attempt.state).in_(LIVE_ATTEMPTS))
    )
    return session.exec(query).first()


def last_attempt_on(session: Session, lease_id: str) -> Attempt | None:
    """The newest attempt that the lease served, ended or not."""
    query = (
        select(Attempt)
        .where(Attempt.lease_id == lease_id)
        .order_by(col(Attempt.created_at).desc(), col(Attempt.id).desc())
    )
    return session.exec(query).first()
