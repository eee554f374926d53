"""The ledger: one charge line per phase of a lease, written when the phase ends."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from sqlmodel import Session, col, select

from hybrid.core.lifecycle import LeaseState
from hybrid.core.units import Rate, cost_between, microseconds
from hybrid.store.tables import Charge, Job, Lease

#: What the time spent in a state is charged as. Boot that never became ready is failed-launch.
KIND_OF_STATE = {
    LeaseState.REQUESTED: "boot",
    LeaseState.BOOTING: "boot",
    LeaseState.READY: "warm",
    LeaseState.BUSY: "job",
    LeaseState.RELEASING: "teardown",
}


def lease_rate(lease: Lease) -> Rate:
    """The rate that was frozen when the lease was requested."""
    return Rate(
        per_hour=lease.rate_per_hour,
        currency=lease.rate_currency,
        unit=lease.rate_unit,
        source=lease.rate_source,
        as_of=lease.rate_as_of,
    )


def close_phase(session: Session, lease: Lease, target: LeaseState, at: datetime) -> None:
    """Charge the time since the last line, if moving to `target` ends a kind of charge.

    A lease that the outside world surely never granted (`acquired` False) costs nothing.
    """
    kind = KIND_OF_STATE[lease.state]
    if kind == KIND_OF_STATE.get(target):
        return
    if kind == "boot" and target is LeaseState.RELEASING:
        kind = "failed-launch"
    if lease.acquired is not False and at > lease.phase_started_at:
        session.add(charge_line(session, lease, kind, at))
    lease.phase_started_at = max(at, lease.phase_started_at)


def charge_line(session: Session, lease: Lease, kind: str, end: datetime) -> Charge:
    """The line for [phase start, `end`): also used, unsaved, to show what is accruing."""
    start = lease.phase_started_at
    start_us = microseconds(lease.requested_at, start)
    end_us = microseconds(lease.requested_at, end)
    user, project, attempt = lease.owner, lease.project, None
    if kind == "job" and lease.job_id is not None:
        job = session.get(Job, lease.job_id)
        if job is not None:
            user, project, attempt = job.user, job.project, job.attempts
    rate = lease_rate(lease)
    return Charge(
        lease_id=lease.id,
        job_id=lease.job_id,
        attempt=attempt,
        user=user,
        project=project,
        place=place_of(lease),
        kind=kind,
        start_at=start,
        end_at=end,
        units=lease.units,
        unit=rate.unit,
        seconds=Decimal(end_us - start_us) / 1_000_000,
        rate_per_hour=rate.per_hour,
        rate_source=rate.source,
        rate_as_of=rate.as_of,
        amount=cost_between(rate, lease.units, start_us, end_us),
        currency=rate.currency,
    )


def place_of(lease: Lease) -> str:
    """``pool`` or the provider's name: where the money goes."""
    return "pool" if lease.offer is None else str(lease.offer["provider"])


def accruing(session: Session, now: datetime) -> list[Charge]:
    """Unsaved lines for every phase that is still open, up to `now`."""
    query = select(Lease).where(Lease.state != LeaseState.RELEASED).order_by(Lease.id)
    return [
        charge_line(session, lease, KIND_OF_STATE[lease.state], now)
        for lease in session.exec(query)
        if lease.acquired is not False and now > lease.phase_started_at
    ]


def spent_between(session: Session, start: datetime, end: datetime, unit: str) -> Decimal:
    """What [start, end) cost for leases charged by `unit`, open phases included.

    A line that overlaps the window counts with the share of its time that lies inside.
    """
    query = select(Charge).where(Charge.unit == unit).where(col(Charge.end_at) > start)
    lines = [*session.exec(query), *(line for line in accruing(session, end) if line.unit == unit)]
    total = Decimal(0)
    for line in lines:
        length = microseconds(line.start_at, line.end_at)
        inside = microseconds(max(line.start_at, start), min(line.end_at, end))
        if inside > 0:
            total += line.amount * inside / length
    return total


def charges_between(session: Session, start: datetime, end: datetime) -> Sequence[Charge]:
    """Lines whose period starts in [start, end)."""
    query = (
        select(Charge)
        .where(col(Charge.start_at) >= start)
        .where(col(Charge.start_at) < end)
        .order_by(col(Charge.id))
    )
    return session.exec(query).all()


def charges_of_job(session: Session, job_id: str) -> Sequence[Charge]:
    query = select(Charge).where(Charge.job_id == job_id).order_by(col(Charge.id))
    return session.exec(query).all()


def charges_of_lease(session: Session, lease_id: str) -> Sequence[Charge]:
    query = select(Charge).where(Charge.lease_id == lease_id).order_by(col(Charge.id))
    return session.exec(query).all()
