"""Drives one attempt: dispatch to the lease's Ray cluster, follow, and record the end.

The outcome comes from the polled status (and the lease's health, which the lease driver
watches), never from the end of a log stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import structlog
from sqlmodel import Session

from hybrid.core.lifecycle import AttemptState, JobState, LeaseState
from hybrid.core.policy import Policy
from hybrid.ports import ClusterRefused, ClusterUnreachable, Endpoint, RayCluster, RayJob
from hybrid.service.deps import ServiceDeps
from hybrid.service.records import current, give_back_job, job_on, reading, task_of, writing
from hybrid.store.codec import load_requirements
from hybrid.store.jobs import (
    last_attempt_on,
    live_attempt_on,
    move_attempt,
    move_job,
    open_attempt,
)
from hybrid.store.journal import record_outcome
from hybrid.store.leases import move_lease
from hybrid.store.ledger import charge_line, charges_of_job
from hybrid.store.tables import Attempt, Job, Json, Lease

log = structlog.get_logger(__name__)

#: The status is asked for after each tenth of the time followed so far, within these bounds:
#: a short job's end is seen at once, a long one's costs a call per second.
STATUS_POLL_SHARE, LEAST_POLL_SECONDS, MOST_POLL_SECONDS = 0.1, 0.08, 1.0
DEMAND_POLL_SECONDS = 5.0
RETRY_SECONDS = 1.0
TAIL_RETRY_SECONDS = 0.5
#: Ray's error types that mean the infrastructure failed, not the user's program.
INFRASTRUCTURE_ERRORS = frozenset(
    {
        "JOB_SUPERVISOR_ACTOR_DIED",
        "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE",
        "JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
        "JOB_STATUS_CHECK_TIMEOUT",
    }
)
_TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended: its state, the words for it, and Ray's own details if any."""

    state: AttemptState
    cause: str
    error_type: str | None = None
    details: RayJob | None = None


async def run(deps: ServiceDeps, lease_id: str, nudge: asyncio.Event) -> None:
    """Bring the lease's job from where it stands to its end and record it."""
    lease, attempt, job = await writing(
        deps.store, lambda s: _intent(s, lease_id, deps.clock.now())
    )
    if attempt is None or job is None:  # it has ended: only the lease is left to let go
        await _let_lease_go(deps, lease)
        return
    if lease.endpoint_url is None:
        raise LookupError(f"lease {lease_id} is {lease.state} without an endpoint")
    cluster = deps.connect(Endpoint(lease.endpoint_url, lease.cluster_token))
    try:
        ending: Ending | None = None
        if attempt.state is AttemptState.SUBMITTING:
            ending = await _dispatch(deps, cluster, attempt, job)
        if ending is None:
            ending = await _follow(deps, cluster, attempt, nudge)
            await _drain_logs(deps, cluster, attempt)
    finally:
        await cluster.close()
    end = ending
    await writing(deps.store, lambda s: _record_end(s, deps, lease_id, attempt.id, end))
    deps.logs.wake(attempt.job_id)
    if ending.state is not AttemptState.LOST:
        await _let_lease_go(deps, lease)


def _intent(
    session: Session, lease_id: str, now: datetime
) -> tuple[Lease, Attempt | None, Job | None]:
    """Open the attempt (or find it, after a restart) and mark the lease busy. No attempt where
    the job's end is recorded already (and its user may have deleted it since)."""
    lease = current(session, lease_id)
    job = job_on(session, lease)
    if job is None or job.state.terminal:
        return lease, None, job
    attempt = live_attempt_on(session, lease_id)
    if attempt is None:
        attempt = open_attempt(session, job, lease_id, now)
        move_lease(session, lease, LeaseState.BUSY, f"serves {job.id}", now)
        job.message = "The lease is up; handing the job to its Ray cluster."
        session.add(job)
    return lease, attempt, job


# --------------------------------------------------------------------------- dispatch


async def _dispatch(
    deps: ServiceDeps, cluster: RayCluster, attempt: Attempt, job: Job
) -> Ending | None:
    """GET, PUT, POST. None once the cluster has the job; an ending if it will not take it."""
    if job.stop_requested_at is not None:
        return Ending(AttemptState.STOPPED, job.stop_reason)
    while True:
        try:
            for name in job.packages:
                await cluster.put_package(name, str(deps.packages.path(name)))
            await cluster.submit(submission(job, attempt))
            break
        except ClusterRefused as refusal:
            cause = f"the lease's Ray cluster refused the job ({refusal.status}): {refusal}"
            return Ending(AttemptState.FAILED, cause, "JOB_SUPERVISOR_ACTOR_START_FAILURE")
        except FileNotFoundError as missing:
            return Ending(
                AttemptState.FAILED,
                f"the package {missing.filename} is gone from Hybrid's store; submit again",
                "RUNTIME_ENV_SETUP_FAILURE",
            )
        except ClusterUnreachable as error:
            log.info("attempt.cluster-unreachable", attempt=attempt.id, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
    deps.checkpoint("submitted")

    def accepted(session: Session) -> None:
        now = deps.clock.now()
        row = session.get_one(Attempt, attempt.id)
        owner = session.get_one(Job, job.id)
        move_attempt(session, row, AttemptState.RUNNING, "accepted by Ray", now)
        owner.message = "Building the environment."
        move_job(session, owner, JobState.RUNNING, f"attempt {row.number}", now)

    await writing(deps.store, accepted)
    return None


def submission(job: Job, attempt: Attempt) -> Mapping[str, object]:
    """The body of the POST: the user's own, plus what marks this attempt's processes."""
    environment = dict(job.runtime_env)
    env_vars = environment.get("env_vars")
    environment["env_vars"] = {
        **(env_vars if isinstance(env_vars, dict) else {}),
        "HYBRID_JOB_ID": job.id,
        "HYBRID_ATTEMPT": str(attempt.number),
        "HYBRID_ATTEMPT_ID": attempt.id,
        "HYBRID_LEASE_ID": attempt.lease_id,
    }
    body: dict[str, object | None] = {
        "entrypoint": job.entrypoint,
        "submission_id": attempt.ray_submission_id,
        "runtime_env": environment,
        "metadata": job.user_metadata,
        "entrypoint_num_cpus": job.entrypoint_num_cpus,
        "entrypoint_num_gpus": job.entrypoint_num_gpus,
        "entrypoint_memory": job.entrypoint_memory,
        "entrypoint_resources": job.entrypoint_resources,
        "entrypoint_label_selector": job.entrypoint_label_selector,
    }
    return {key: value for key, value in body.items() if value is not None}


# --------------------------------------------------------------------------- follow


async def _follow(
    deps: ServiceDeps, cluster: RayCluster, attempt: Attempt, nudge: asyncio.Event
) -> Ending:
    """Poll until the status is terminal, while the log is tailed beside it."""
    tail = asyncio.create_task(_tail(deps, cluster, attempt))
    try:
        return await _poll(deps, cluster, attempt, nudge)
    finally:
        tail.cancel()
        await asyncio.gather(tail, return_exceptions=True)


async def _poll(
    deps: ServiceDeps, cluster: RayCluster, attempt: Attempt, nudge: asyncio.Event
) -> Ending:
    began, seen, limits = time.monotonic(), "", _Limits(deps)
    while True:
        try:
            details = await cluster.job(attempt.ray_submission_id)
        except (ClusterUnreachable, ClusterRefused) as error:
            log.info("attempt.poll-failed", attempt=attempt.id, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if details is None:
            return Ending(AttemptState.LOST, "the lease's Ray cluster no longer knows the job")
        job = await reading(deps.store, lambda s: s.get_one(Job, attempt.job_id))
        if details.status in _TERMINAL:
            return ending_of(details, job, limits.reason)
        pending = details.status == "PENDING"
        line = deps.logs.last_driver_line(attempt.job_id, attempt.number) if pending else ""
        note = f"{details.status} {details.message or ''} {line}"
        if note != seen:
            seen = note
            await writing(
                deps.store, partial(_record_progress, attempt=attempt, details=details, line=line)
            )
        await limits.enforce(cluster, attempt, job)
        pause = (time.monotonic() - began) * STATUS_POLL_SHARE
        pause = min(MOST_POLL_SECONDS, max(LEAST_POLL_SECONDS, pause))
        try:
            async with asyncio.timeout(pause):
                await nudge.wait()
        except TimeoutError:
            pass
        nudge.clear()


@dataclass(slots=True)
class _Limits:
    """Ends an attempt from our side: the user's stop, its time limit, demand never to be met."""

    deps: ServiceDeps
    reason: str = ""
    stop_sent_at: float | None = None
    demand_checked_at: float = 0.0
    unmet_since: float | None = None

    async def enforce(self, cluster: RayCluster, attempt: Attempt, job: Job) -> None:
        monotonic = time.monotonic()
        if not self.reason:
            self.reason = await self._why_stop(cluster, job, monotonic)
        if self.reason and (self.stop_sent_at is None or monotonic - self.stop_sent_at > 10):
            self.stop_sent_at = monotonic
            await cluster.stop(attempt.ray_submission_id)

    async def _why_stop(self, cluster: RayCluster, job: Job, monotonic: float) -> str:
        if job.stop_requested_at is not None:
            return job.stop_reason or "Job was intentionally stopped."
        limit = load_requirements(job.requirements).max_runtime_seconds
        if limit is not None and job.started_at is not None:
            started = job.started_at
            if self.deps.clock.now() > started + timedelta(seconds=limit):
                return f"hybrid.max_runtime of {limit:g} s is over"
        return await self._impossible_demand(cluster, job, monotonic)

    async def _impossible_demand(self, cluster: RayCluster, job: Job, monotonic: float) -> str:
        if monotonic - self.demand_checked_at < DEMAND_POLL_SECONDS:
            return ""
        self.demand_checked_at = monotonic
        try:
            unmet = await cluster.unmet_demand()
        except (ClusterUnreachable, ClusterRefused):
            return ""
        if unmet is None:
            self.unmet_since = None
            return ""
        if self.unmet_since is None:
            self.unmet_since = monotonic
        allowed = self.deps.policies.current.policy.jobs.impossible_demand_seconds
        sentence = f"waits for what its lease can never give: {unmet}"
        if monotonic - self.unmet_since >= allowed:
            return f"ended after {allowed:g} s because it {sentence}; ask for a larger gang"
        note = f"The job {sentence}; it will be ended after {allowed:g} s."
        if job.message != note:
            await writing(self.deps.store, lambda s: _set_message(s, job.id, note))
        return ""


def _set_message(session: Session, job_id: str, message: str) -> None:
    job = session.get_one(Job, job_id)
    job.message = message
    session.add(job)


def _record_progress(session: Session, attempt: Attempt, details: RayJob, line: str) -> None:
    job = session.get_one(Job, attempt.job_id)
    if details.status == "PENDING":
        job.message = f"Building the environment: {line}" if line else "Building the environment."
    else:
        job.message = details.message or "Job is currently running."
    _copy_details(job, details)
    session.add(job)


def _copy_details(job: Job, details: RayJob) -> None:
    job.ray_job_id = details.job_id
    job.driver_info = dict(details.driver_info) if details.driver_info else None
    job.driver_node_id = details.driver_node_id
    job.driver_agent_http_address = details.driver_agent_http_address


def ending_of(details: RayJob, job: Job, our_reason: str) -> Ending:
    """Translate Ray's terminal status. A stop that we sent for a limit is a failure; one that
    the user asked for is not; a fault of the infrastructure is a loss, never the user's."""
    message = details.message or ""
    if details.status == "SUCCEEDED":
        return Ending(AttemptState.SUCCEEDED, message, details=details)
    if our_reason or details.status == "STOPPED":
        wanted = job.stop_requested_at is not None or not our_reason
        state = AttemptState.STOPPED if wanted else AttemptState.FAILED
        return Ending(state, our_reason or message, details.error_type, details)
    if details.error_type in INFRASTRUCTURE_ERRORS:
        return Ending(AttemptState.LOST, message, details.error_type, details)
    return Ending(AttemptState.FAILED, message, details.error_type, details)


# --------------------------------------------------------------------------- logs


async def _tail(deps: ServiceDeps, cluster: RayCluster, attempt: Attempt) -> None:
    """Copy the driver's log for as long as the attempt is followed; a broken stream is taken up
    again at the byte where it broke."""
    while True:
        skip = deps.logs.driver_size(attempt.job_id, attempt.number)
        try:
            async for chunk in cluster.tail(attempt.ray_submission_id, skip):
                deps.logs.append_driver(attempt.job_id, attempt.number, chunk)
        except (ClusterUnreachable, ClusterRefused) as error:
            log.info("attempt.tail-broke", attempt=attempt.id, error=str(error))
        await asyncio.sleep(TAIL_RETRY_SECONDS)


async def _drain_logs(deps: ServiceDeps, cluster: RayCluster, attempt: Attempt) -> None:
    """After the end: whatever the stream had not brought yet."""
    try:
        whole = await cluster.logs(attempt.ray_submission_id)
    except (ClusterUnreachable, ClusterRefused) as error:
        deps.logs.say(attempt.job_id, f"the end of the log could not be fetched: {error}")
        return
    have = deps.logs.driver_size(attempt.job_id, attempt.number)
    if len(whole) > have:
        deps.logs.append_driver(attempt.job_id, attempt.number, whole[have:])


# --------------------------------------------------------------------------- the end

_CLEAN = (AttemptState.SUCCEEDED, AttemptState.FAILED)
_JOB_STATE = {
    AttemptState.SUCCEEDED: JobState.SUCCEEDED,
    AttemptState.FAILED: JobState.FAILED,
    AttemptState.STOPPED: JobState.STOPPED,
}


def _record_end(
    session: Session, deps: ServiceDeps, lease_id: str, attempt_id: str, ending: Ending
) -> None:
    """Close attempt and job in one transaction. The user hears of the end now; what the job left
    behind is looked for afterwards. A lost attempt takes its lease with it."""
    now = deps.clock.now()
    policy = deps.policies.current.policy
    lease, attempt = current(session, lease_id), session.get_one(Attempt, attempt_id)
    job = session.get_one(Job, attempt.job_id)
    if ending.details is not None:
        _copy_details(job, ending.details)
        job.driver_exit_code = attempt.exit_code = ending.details.driver_exit_code
    move_attempt(session, attempt, ending.state, ending.cause, now)
    if ending.state is AttemptState.LOST:
        move_lease(session, lease, LeaseState.RELEASING, f"{job.id} lost: {ending.cause}", now)
        _requeue(session, lease, job, ending, policy, now)
    else:
        if job.state is JobState.STARTING and ending.state is AttemptState.SUCCEEDED:
            move_job(session, job, JobState.RUNNING, "accepted by Ray", now)
        job.message, job.error_type = ending.cause, ending.error_type
        move_job(session, job, _JOB_STATE[ending.state], ending.cause, now)
    if job.state.terminal:
        record_outcome(session, job.id, _outcome(session, job, attempt, lease, now))


def _requeue(
    session: Session, lease: Lease, job: Job, ending: Ending, policy: Policy, now: datetime
) -> None:
    give_back_job(session, lease, f"attempt lost: {ending.cause}", now)
    if job.state is JobState.QUEUED and job.attempts >= policy.jobs.max_attempts:
        job.message = f"gave up after {job.attempts} attempts; the last was lost: {ending.cause}"
        job.error_type = ending.error_type or "JOB_SUPERVISOR_ACTOR_DIED"
        move_job(session, job, JobState.FAILED, job.message, now)


async def _let_lease_go(deps: ServiceDeps, lease: Lease) -> None:
    """After a job's end: kill what it left, then warm or away. Warm only after a clean end: a
    stopped job may have left anything behind."""
    attempt = await reading(deps.store, lambda s: last_attempt_on(s, lease.id))
    left = None
    if attempt is not None:
        task = task_of(lease, deps.orchestrator_id)
        left = await deps.backend_of(lease).sweep(task, attempt.id)

    def change(session: Session) -> None:
        now, policy = deps.clock.now(), deps.policies.current.policy
        row = current(session, lease.id)
        if row.state not in (LeaseState.BUSY, LeaseState.READY):
            return
        clean = attempt is not None and left is None and attempt.state in _CLEAN
        if row.state is LeaseState.BUSY and clean and policy.leases.warm_seconds > 0:
            move_lease(session, row, LeaseState.READY, f"{lease.job_id} ended; kept warm", now)
            row.job_id = None
            session.add(row)
            return
        why = (
            f"{lease.job_id} ended" if clean else f"{lease.job_id} ended: {left or 'not kept warm'}"
        )
        move_lease(session, row, LeaseState.RELEASING, why, now)

    await writing(deps.store, change)


def _outcome(session: Session, job: Job, attempt: Attempt, lease: Lease, now: datetime) -> Json:
    """What came of the decision: the state, when it started, what it cost up to its end."""
    lines = [*charges_of_job(session, job.id), charge_line(session, lease, "job", now)]
    costs: dict[str, str] = {}
    for currency in sorted({line.currency for line in lines}):
        total = sum(line.amount for line in lines if line.currency == currency)
        costs[currency] = format(total, "f")
    started = attempt.started_at or attempt.created_at
    return {
        "state": str(job.state),
        "lease_id": attempt.lease_id,
        "started_at": started.isoformat(),
        "waited_seconds": (started - job.submitted_at).total_seconds(),
        "ran_seconds": (attempt.ended_at - started).total_seconds() if attempt.ended_at else None,
        "cost": costs,
    }
