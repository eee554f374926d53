"""Leases: written down before anything outside is asked for, closed only when observed gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlmodel import Session, col, select

from hybrid.core.lifecycle import LeaseState, check_transition
from hybrid.store.journal import record_transition
from hybrid.store.ledger import close_phase
from hybrid.store.tables import Lease

OPEN = tuple(state for state in LeaseState if state.open)


def add_lease(session: Session, lease: Lease, cause: str) -> None:
    """Write the intent to acquire a lease."""
    session.add(lease)
    record_transition(
        session, "lease", lease.id, None, lease.state, cause, lease.requested_at, lease.job_id
    )


def get_lease(session: Session, lease_id: str) -> Lease | None:
    return session.get(Lease, lease_id)


def leases_in(session: Session, states: Sequence[LeaseState] = OPEN) -> Sequence[Lease]:
    query = select(Lease).where(col(Lease.state).in_(states)).order_by(Lease.id)
    return session.exec(query).all()


def move_lease(
    session: Session, lease: Lease, target: LeaseState, cause: str, at: datetime
) -> None:
    """Move a lease along its table, write the charge line of the phase that ends, journal it."""
    check_transition("lease", lease.id, lease.state, target)
    close_phase(session, lease, target, at)
    source, lease.state = lease.state, target
    job_id = lease.job_id
    match target:
        case LeaseState.READY:
            lease.ready_at = lease.ready_at or at
            lease.idle_since = at
        case LeaseState.BUSY:
            lease.idle_since = None
        case LeaseState.RELEASING:
            lease.releasing_at, lease.release_reason, lease.idle_since = at, cause, None
        case LeaseState.RELEASED:
            lease.released_at, lease.remains, lease.job_id = at, "", None
        case _:
            pass
    session.add(lease)
    record_transition(session, "lease", lease.id, source, target, cause, at, job_id)
