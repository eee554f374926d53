"""Small reads and writes that both drivers need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from sqlmodel import Session

from hybrid.core.lifecycle import JobState, LeaseState
from hybrid.core.model import LeaseKind
from hybrid.ports import LeaseTask
from hybrid.store.codec import load_gang, load_offer, load_shares
from hybrid.store.engine import Store
from hybrid.store.jobs import move_job
from hybrid.store.leases import get_lease
from hybrid.store.tables import Job, Lease

T = TypeVar("T")


async def reading(store: Store, query: Callable[[Session], T]) -> T:
    """Run `query` on a read session in a thread."""

    def work() -> T:
        with store.read() as session:
            return query(session)

    return await asyncio.to_thread(work)


async def writing(store: Store, change: Callable[[Session], T]) -> T:
    """Run `change` in one transaction in a thread."""

    def work() -> T:
        with store.write() as session:
            return change(session)

    return await asyncio.to_thread(work)


def task_of(lease: Lease, orchestrator_id: str) -> LeaseTask:
    """What a backend needs of a lease row. The tags are on everything that is rented for it."""
    offer = load_offer(lease.offer) if lease.offer else None
    return LeaseTask(
        id=lease.id,
        kind=LeaseKind(lease.kind),
        token=lease.token,
        cluster_token=lease.cluster_token,
        gang=load_gang(lease.gang),
        expires_at=lease.expires_at,
        shares=load_shares(lease.shares),
        offer=offer,
        tags={
            "hybrid-orchestrator": orchestrator_id,
            "hybrid-lease": lease.id,
            "hybrid-project": lease.project,
            "hybrid-expiry": lease.hard_end_at.isoformat(),
        },
        instance_ids=tuple(lease.instance_ids),
        price_ceiling=offer.price_per_hour if offer else None,
        hard_end_at=lease.hard_end_at,
        requested_at=lease.requested_at,
        acquired=lease.acquired,
    )


def current(session: Session, lease_id: str) -> Lease:
    """The lease row; leases are never deleted, so its absence is a broken database."""
    lease = get_lease(session, lease_id)
    if lease is None:
        raise LookupError(f"lease {lease_id} has a driver but no row")
    return lease


def job_on(session: Session, lease: Lease) -> Job | None:
    """The job that the lease is meant for or serves."""
    return session.get(Job, lease.job_id) if lease.job_id else None


def give_back_job(session: Session, lease: Lease, cause: str, now: datetime) -> Job | None:
    """The lease fails its job before it ran: stop it if that was asked, else queue it again."""
    job = job_on(session, lease)
    lease.job_id = None
    session.add(lease)
    if job is None or job.state.terminal or job.lease_id != lease.id:
        return None
    if job.stop_requested_at is not None:
        job.message = job.stop_reason
        move_job(session, job, JobState.STOPPED, job.stop_reason, now)
    else:
        job.message = cause
        move_job(session, job, JobState.QUEUED, cause, now)
    return job


def serves_nobody(lease: Lease) -> bool:
    """Warm: up and waiting for the planner's word."""
    return lease.state is LeaseState.READY and lease.job_id is None
