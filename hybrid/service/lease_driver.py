"""Drives one lease from its written intent to being observed gone.

Level-triggered: each turn reads the row and does the next thing, so a driver can be killed and
started again at any line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import random
from typing import TypeVar

import structlog
from sqlmodel import Session

from hybrid.core.failover import rest_until
from hybrid.core.lifecycle import AttemptState, JobState, LeaseState
from hybrid.core.policy import Policy
from hybrid.ports import (
    Acquired,
    Endpoint,
    Health,
    LeaseHealth,
    LeaseTask,
    LeaseUnavailable,
    Progress,
)
from hybrid.service import attempt_driver
from hybrid.service.deps import ServiceDeps
from hybrid.service.records import (
    current,
    give_back_job,
    job_on,
    reading,
    serves_nobody,
    task_of,
    writing,
)
from hybrid.store.codec import dump_shares, load_offer
from hybrid.store.jobs import live_attempt_on, move_attempt, move_job
from hybrid.store.leases import move_lease
from hybrid.store.marks import record_miss
from hybrid.store.tables import Attempt, Job, LaunchMiss, Lease

log = structlog.get_logger(__name__)
T = TypeVar("T")

BOOT_POLL_SECONDS = 0.25
HEALTH_POLL_SECONDS = 5.0
RELEASE_POLL_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
CALL_TIMEOUT_SECONDS = 60.0
#: Beyond a fence, how much later than its own clock we trust a node to have acted on it.
FENCE_MARGIN_SECONDS = 15.0


@dataclass(slots=True)
class LeaseDriver:
    """One per open lease. `nudge` is set when somebody changed the row on purpose."""

    deps: ServiceDeps
    lease_id: str
    nudge: asyncio.Event
    wake_planner: Callable[[], None]

    async def run(self) -> None:
        """Until the lease is released. Faults of the outside are waited out, with their reason
        on the row."""
        failures = 0
        while True:
            lease = await reading(self.deps.store, lambda s: current(s, self.lease_id))
            if lease.state is LeaseState.RELEASED:
                return
            try:
                await self._turn(lease)
                failures = 0
            except Exception as error:
                failures += 1
                pause = RELEASE_POLL_SECONDS[min(failures, len(RELEASE_POLL_SECONDS)) - 1]
                log.warning(
                    "lease.turn-failed",
                    lease=self.lease_id,
                    state=str(lease.state),
                    error=f"{type(error).__name__}: {error}",
                    retry_seconds=pause,
                    exc_info=not isinstance(error, (TimeoutError, ConnectionError)),
                )
                await self._note(lease, f"{type(error).__name__}: {error}")
                await self._pause(pause)

    async def _turn(self, lease: Lease) -> None:
        match lease.state:
            case LeaseState.REQUESTED:
                await self._acquire(lease)
            case LeaseState.BOOTING:
                await self._boot(lease)
            case LeaseState.READY if serves_nobody(lease):
                await self._keep_warm(lease)
            case LeaseState.READY | LeaseState.BUSY:
                await self._serve(lease)
            case _:
                await self._release(lease)

    # ------------------------------------------------------------------ coming up

    async def _acquire(self, lease: Lease) -> None:
        if await self._job_gave_up(lease):
            return
        if self._boot_overdue(lease):
            await self._fail_boot(lease, lease.message or "the launch never answered")
            return
        try:
            async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                acquired = await self.deps.backend_of(lease).acquire(self._task(lease))
        except LeaseUnavailable as refusal:
            await self._refused(refusal)
            return
        self.deps.checkpoint(f"acquired:{lease.kind}")
        await self._change(lambda s, le, now: _record_acquired(s, le, acquired, now))

    async def _refused(self, refusal: LeaseUnavailable) -> None:
        """Nothing was given, for certain: the job decides anew, that offer rests a while."""
        policy = self._policy
        jitter = random()

        def change(session: Session, lease: Lease, now: datetime) -> None:
            reason = str(refusal)
            lease.acquired, lease.failure, lease.failure_kind = False, reason, str(refusal.kind)
            move_lease(session, lease, LeaseState.RELEASING, reason, now)
            if lease.offer is not None:
                record_miss(
                    session,
                    LaunchMiss(
                        offer_key=load_offer(lease.offer).key,
                        kind=str(refusal.kind),
                        reason=reason,
                        at=now,
                        until=rest_until(refusal.kind, now, policy, jitter),
                    ),
                )
            give_back_job(session, lease, f"{lease.kind} lease refused: {reason}", now)

        await self._change(change)
        self.wake_planner()

    async def _boot(self, lease: Lease) -> None:
        if await self._job_gave_up(lease):
            return
        if self._boot_overdue(lease):
            await self._fail_boot(lease, lease.message or "it never became ready")
            return
        async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
            progress: Progress = await self.deps.backend_of(lease).progress(self._task(lease))
        if progress.failed is not None:
            await self._fail_boot(lease, progress.failed)
            return
        if progress.endpoint is not None:
            endpoint = progress.endpoint
            await self._change(lambda s, le, now: _record_ready(s, le, endpoint, now))
            return
        if progress.message != lease.message:
            await self._note(lease, progress.message)
        await self._pause(BOOT_POLL_SECONDS)

    def _boot_overdue(self, lease: Lease) -> bool:
        limit = timedelta(seconds=self._policy.leases.boot_timeout_seconds)
        return self.deps.clock.now() > lease.requested_at + limit

    async def _fail_boot(self, lease: Lease, reason: str) -> None:
        policy = self._policy

        def change(session: Session, lease: Lease, now: datetime) -> str | None:
            lease.failure, lease.failure_kind = reason, "boot"
            move_lease(session, lease, LeaseState.RELEASING, f"boot failed: {reason}", now)
            job = give_back_job(session, lease, f"its lease failed to come up: {reason}", now)
            if job is None or job.state is not JobState.QUEUED:
                return None
            job.boot_failures += 1
            if job.boot_failures >= policy.jobs.max_boot_failures:
                job.message = (
                    f"gave up after {job.boot_failures} leases that failed to come up; "
                    f"the last one: {reason}"
                )
                job.error_type = "JOB_SUPERVISOR_ACTOR_START_FAILURE"
                move_job(session, job, JobState.FAILED, job.message, now)
            return job.id

        job_id = await self._change(change)
        if job_id:
            self.deps.logs.say(job_id, f"lease {lease.id} failed to come up: {reason}")
        self.wake_planner()

    async def _job_gave_up(self, lease: Lease) -> bool:
        """A lease whose job was stopped before it started is released, whatever it reached."""

        def change(session: Session, lease: Lease, now: datetime) -> bool:
            job = job_on(session, lease)
            if job is not None and job.stop_requested_at is None and not job.state.terminal:
                return False
            move_lease(session, lease, LeaseState.RELEASING, "its job was stopped", now)
            give_back_job(session, lease, "stopped", now)
            return True

        job = await reading(self.deps.store, lambda s: job_on(s, lease))
        if job is not None and job.stop_requested_at is None and not job.state.terminal:
            return False
        gave_up = await self._change(change)
        self.wake_planner()
        return gave_up

    # ------------------------------------------------------------------ serving

    async def _keep_warm(self, lease: Lease) -> None:
        if await self._check_health(lease):
            await self._renew_if_due(lease)
            await self._pause(HEALTH_POLL_SECONDS)

    async def _serve(self, lease: Lease) -> None:
        """Run the attempt, watching the lease's health beside it."""
        work = asyncio.create_task(attempt_driver.run(self.deps, lease.id, self.nudge))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=HEALTH_POLL_SECONDS)
                if work.done():
                    break
                fresh = await reading(self.deps.store, lambda s: current(s, self.lease_id))
                if fresh.state not in (LeaseState.BUSY, LeaseState.READY):
                    break
                if not await self._check_health(fresh):
                    return
                await self._renew_if_due(fresh)
            await work
        finally:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            self.wake_planner()

    async def _check_health(self, lease: Lease) -> bool:
        """False when the lease was found dead (and is being released)."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                health = await self.deps.backend_of(lease).health(self._task(lease))
        except (TimeoutError, OSError) as error:
            health = LeaseHealth(Health.UNREACHABLE, f"{type(error).__name__}: {error}")
        if health.health is Health.ALIVE:
            return True
        now = self.deps.clock.now()
        fenced = now > lease.expires_at + timedelta(seconds=FENCE_MARGIN_SECONDS)
        if health.health is Health.UNREACHABLE and not fenced:
            await self._note(lease, f"cannot be reached: {health.reason}")
            return True
        reason = health.reason or "its fence has passed without a word from it"
        await self._lose(reason, health.reclaimed)
        return False

    async def _lose(self, reason: str, reclaimed: bool) -> None:
        """The machine under a lease is gone: its attempt is lost and its job tried again."""
        policy = self._policy

        def change(session: Session, lease: Lease, now: datetime) -> str | None:
            lease.failure, lease.failure_kind = reason, "reclaimed" if reclaimed else "lost"
            move_lease(session, lease, LeaseState.RELEASING, reason, now)
            job = lose_attempt(session, lease, reason, reclaimed, policy, now)
            return job.id if job else None

        job_id = await self._change(change)
        if job_id:
            self.deps.logs.say(job_id, f"attempt lost: {reason}")
        self.wake_planner()

    async def _renew_if_due(self, lease: Lease) -> None:
        """Move the fence while the lease is healthy; the row first, so that we never think a
        node fenced that is not."""
        now = self.deps.clock.now()
        period = timedelta(seconds=self._policy.leases.lease_seconds)
        due = lease.expires_at - now < period * 2 / 3
        until = min(now + period, lease.hard_end_at)
        if not due or until <= lease.expires_at:
            return

        def change(session: Session, lease: Lease, _now: datetime) -> None:
            lease.expires_at = until
            session.add(lease)

        task = self._task(lease)
        await self._change(change)
        async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
            await self.deps.backend_of(lease).renew(task, until)

    # ------------------------------------------------------------------ going

    async def _release(self, lease: Lease) -> None:
        tries = 0
        while True:
            async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                remains = await self.deps.backend_of(lease).release(self._task(lease))
            self.deps.checkpoint(f"release-asked:{lease.kind}")
            if remains is None:
                await self._change(
                    lambda s, le, now: move_lease(s, le, LeaseState.RELEASED, "observed gone", now)
                )
                self.wake_planner()
                return
            if remains != lease.remains:
                await self._note_remains(remains)
                lease.remains = remains
            await asyncio.sleep(RELEASE_POLL_SECONDS[min(tries, len(RELEASE_POLL_SECONDS) - 1)])
            tries += 1

    async def _note_remains(self, remains: str) -> None:
        def change(session: Session, lease: Lease, _now: datetime) -> None:
            lease.remains = remains
            session.add(lease)

        await self._change(change)

    # ------------------------------------------------------------------ plumbing

    @property
    def _policy(self) -> Policy:
        return self.deps.policies.current.policy

    def _task(self, lease: Lease) -> LeaseTask:
        return task_of(lease, self.deps.orchestrator_id)

    async def _change(self, change: Callable[[Session, Lease, datetime], T]) -> T:
        now = self.deps.clock.now()
        return await writing(self.deps.store, lambda s: change(s, current(s, self.lease_id), now))

    async def _note(self, lease: Lease, message: str) -> None:
        """Put a sentence on the lease and on the job that waits for it."""

        def change(session: Session, lease: Lease, _now: datetime) -> None:
            lease.message = message
            session.add(lease)
            job = job_on(session, lease)
            if job is not None and job.state is JobState.STARTING:
                job.message = message
                session.add(job)

        if message != lease.message:
            await self._change(change)

    async def _pause(self, seconds: float) -> None:
        """Wait, or less if nudged."""
        try:
            async with asyncio.timeout(seconds):
                await self.nudge.wait()
        except TimeoutError:
            pass
        self.nudge.clear()


def _record_acquired(session: Session, lease: Lease, acquired: Acquired, now: datetime) -> None:
    lease.acquired = True
    if acquired.shares:
        lease.shares = dump_shares(acquired.shares)
    lease.instance_ids = list(acquired.instance_ids)
    move_lease(session, lease, LeaseState.BOOTING, "acquired", now)


def _record_ready(session: Session, lease: Lease, endpoint: Endpoint, now: datetime) -> None:
    lease.endpoint_url, lease.message = endpoint.url, ""
    move_lease(session, lease, LeaseState.READY, "up, gate passed", now)


def lose_attempt(
    session: Session, lease: Lease, reason: str, reclaimed: bool, policy: Policy, now: datetime
) -> Job | None:
    """End the lease's live attempt as lost and put its job back, or give up on it.

    A reclaimed (spot) attempt is not counted against `max_attempts`.
    """
    attempt: Attempt | None = live_attempt_on(session, lease.id)
    if attempt is not None:
        move_attempt(session, attempt, AttemptState.LOST, reason, now)
    job = give_back_job(session, lease, f"attempt lost: {reason}", now)
    if job is None or job.state is not JobState.QUEUED:
        return job
    if job.attempts >= policy.jobs.max_attempts and not reclaimed:
        job.message = f"gave up after {job.attempts} attempts; the last was lost: {reason}"
        job.error_type = "JOB_SUPERVISOR_ACTOR_DIED"
        move_job(session, job, JobState.FAILED, job.message, now)
    return job
