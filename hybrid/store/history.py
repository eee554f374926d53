"""The installation's own past as a history of jobs, in the schema that all histories share."""

from __future__ import annotations

from collections.abc import Iterator

from sqlmodel import Session, col, select

from hybrid.core.lifecycle import AttemptState
from hybrid.store.codec import load_gang, load_requirements
from hybrid.store.tables import Attempt, Job, Lease
from hybrid.traces.record import Ended, TraceJob

_ENDED = {
    AttemptState.SUCCEEDED: Ended.COMPLETED,
    AttemptState.FAILED: Ended.FAILED,
    AttemptState.STOPPED: Ended.CANCELLED,
    AttemptState.LOST: Ended.LOST,
}
_BATCH = 1000


def history(session: Session) -> Iterator[TraceJob]:
    """One row per attempt that ran and ended, oldest first; streamed.

    A job that was stopped by its own limit counts as timed out. The gang is the lease's: what the
    attempt really held.
    """
    query = (
        select(Attempt, Job, Lease)
        .join(Job, col(Job.id) == col(Attempt.job_id))
        .join(Lease, col(Lease.id) == col(Attempt.lease_id))
        .where(col(Attempt.started_at).is_not(None), col(Attempt.ended_at).is_not(None))
        .order_by(col(Attempt.created_at), col(Attempt.id))
        .execution_options(yield_per=_BATCH)
    )
    for attempt, job, lease in session.exec(query):
        found = _row(attempt, job, lease)
        if found is not None:
            yield found


def _row(attempt: Attempt, job: Job, lease: Lease) -> TraceJob | None:
    if attempt.started_at is None or attempt.ended_at is None:
        return None
    runtime = (attempt.ended_at - attempt.started_at).total_seconds()
    if runtime <= 0:
        return None
    gang, wishes = load_gang(lease.gang), load_requirements(job.requirements)
    limit = wishes.max_runtime_seconds
    ended = _ENDED[attempt.state]
    if ended is Ended.CANCELLED and limit is not None and runtime >= limit:
        ended = Ended.TIMEOUT
    submit = job.submitted_at if attempt.number == 1 else attempt.created_at
    return TraceJob(
        id=attempt.ray_submission_id,
        submit=submit.timestamp(),
        runtime_seconds=runtime,
        gpus=gang.gpus,
        user=job.user,
        project=job.project,
        partition=lease.kind,
        name=job.entrypoint,
        start=attempt.started_at.timestamp(),
        end=attempt.ended_at.timestamp(),
        nodes=gang.nodes,
        cpus=gang.cpus * gang.nodes,
        memory_bytes=gang.memory_bytes * gang.nodes,
        gpu_model=gang.gpu_model,
        limit_seconds=limit,
        ended=ended,
    )
