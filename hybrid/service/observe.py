"""One consistent snapshot of everything a round may look at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import sqlalchemy
from sqlmodel import Session, col, select

from hybrid.core.failover import BootOutcome
from hybrid.core.lifecycle import JobState, LeaseState
from hybrid.core.model import (
    Card,
    CloudUse,
    LeaseKind,
    LeaseView,
    Node,
    NodeShare,
    Offer,
    Snapshot,
    WaitingJob,
)
from hybrid.core.policy import Policy
from hybrid.ports import PoolNode, PoolView
from hybrid.store.codec import (
    load_gang,
    load_offer,
    load_requirements,
    load_shares,
    requirements_from,
)
from hybrid.store.jobs import live_jobs
from hybrid.store.leases import leases_in
from hybrid.store.ledger import spent_between
from hybrid.store.marks import card_marks, node_marks
from hybrid.store.tables import CardMark, Job, Lease, NodeMark


def observe(
    session: Session,
    pool: PoolView,
    offers: Sequence[Offer],
    unavailable: Mapping[str, str],
    now: datetime,
) -> Snapshot:
    """Read the queue, the leases and what was said of nodes and cards in one transaction.

    `pool` and `offers` were asked for just before; `unavailable` is the negative cache with the
    open breakers (offer key → why).
    """
    leases = leases_in(session)
    by_id = live_jobs(session, [lease.job_id for lease in leases if lease.job_id])
    return Snapshot(
        now=now,
        jobs=waiting_jobs(session),
        nodes=pool_nodes(pool, leases, node_marks(session), card_marks(session)),
        leases=tuple(_lease_view(lease, by_id.get(lease.job_id or "")) for lease in leases),
        offers=tuple(offers),
        unavailable=unavailable,
        cloud_use=cloud_use(session, leases, now),
        pool_available=pool.available,
        pool_note=pool.note,
    )


def waiting_jobs(session: Session) -> tuple[WaitingJob, ...]:
    """The queue, in order of submission: the jobs that nobody has asked to stop.

    Columns instead of rows: this is read in every round, and may be thousands.
    """
    query = (
        sqlalchemy.select(
            col(Job.id),
            col(Job.user),
            sqlalchemy.cast(Job.requirements, sqlalchemy.Text),
            col(Job.environment),
            col(Job.submitted_at),
            col(Job.queued_at),
            col(Job.attempts),
            col(Job.not_before),
        )
        .where(col(Job.state) == JobState.QUEUED, col(Job.stop_requested_at).is_(None))
        .order_by(col(Job.submitted_at), col(Job.id))
    )
    return tuple(
        WaitingJob(id, user, requirements_from(wishes), environment, *rest)
        for id, user, wishes, environment, *rest in session.execute(query)
    )


def _lease_view(lease: Lease, job: Job | None) -> LeaseView:
    return LeaseView(
        id=lease.id,
        kind=LeaseKind(lease.kind),
        state=lease.state,
        owner=lease.owner,
        environment=lease.environment,
        gang=load_gang(lease.gang),
        shares=load_shares(lease.shares),
        offer=load_offer(lease.offer) if lease.offer else None,
        job_id=None if lease.state is LeaseState.BUSY and job is None else lease.job_id,
        idle_since=lease.idle_since,
        expires_at=lease.hard_end_at,
        requested_at=lease.requested_at,
        expected_end=_expected_end(lease, job) if job else None,
    )


def _expected_end(lease: Lease, job: Job) -> datetime | None:
    """From the user's own limit or estimate; None where the user gave neither. A job that is
    not running yet counts from the request of its lease."""
    wishes = load_requirements(job.requirements)
    seconds = wishes.runtime_estimate_seconds or wishes.max_runtime_seconds
    if seconds is None:
        return None
    return (job.started_at or lease.requested_at) + timedelta(seconds=seconds)


def pool_nodes(
    pool: PoolView,
    leases: Iterable[Lease],
    marks: Mapping[str, NodeMark],
    sick: Mapping[str, CardMark],
) -> tuple[Node, ...]:
    """The pool's nodes with our own allocations laid over what Ray and the agents report."""
    shares: dict[str, list[tuple[str, NodeShare]]] = defaultdict(list)
    for lease in leases:
        for share in load_shares(lease.shares):
            shares[share.node].append((lease.id, share))
    return tuple(
        _node(node, shares[node.id], marks.get(node.id), sick)
        for node in sorted(pool.nodes, key=lambda n: n.id)
    )


def _node(
    node: PoolNode,
    taken: Sequence[tuple[str, NodeShare]],
    mark: NodeMark | None,
    sick: Mapping[str, CardMark],
) -> Node:
    holder = {uuid: lease_id for lease_id, share in taken for uuid in share.cards}
    cards = [
        Card(
            uuid=card.uuid,
            model=card.model,
            memory_bytes=card.memory_bytes,
            index=card.index,
            held_by=holder.get(card.uuid),
            unusable=(f"quarantined: {sick[card.uuid].reason}" if card.uuid in sick else None)
            or card.unusable,
        )
        for card in sorted(node.cards, key=lambda c: c.index)
    ]
    ours_cpus = sum(share.cpus for _, share in taken)
    ours_bytes = sum(share.memory_bytes for _, share in taken)
    return Node(
        id=node.id,
        address=node.address,
        cpus=node.cpus,
        # A lease just requested is not yet in Ray's figures, a direct user of Ray not in ours.
        free_cpus=max(0.0, min(node.free_cpus, node.cpus - ours_cpus)),
        memory_bytes=node.memory_bytes,
        free_memory_bytes=max(0, min(node.free_memory_bytes, node.memory_bytes - ours_bytes)),
        cards=tuple(_leave_to_direct_users(cards, node)),
        cordoned=(mark.reason or "cordoned") if mark else None,
        resources=node.resources,
    )


def _leave_to_direct_users(cards: list[Card], node: PoolNode) -> list[Card]:
    """Where Ray has fewer free GPUs than we count free cards, others use the difference.

    Ray does not say which; the lease's cards are those that Ray gives when it reserves.
    """
    advertised = {name for name, _ in node.resources}
    if any(f"gpu:{card.uuid}" in advertised for card in cards):
        return cards
    free = [card for card in cards if card.free]
    used_by_others = len(free) - int(node.free_gpus)
    if used_by_others <= 0:
        return cards
    hidden = {card.uuid for card in free[-used_by_others:]}
    return [
        replace(card, unusable="in use by another user of this Ray cluster")
        if card.uuid in hidden
        else card
        for card in cards
    ]


def cloud_use(session: Session, leases: Iterable[Lease], now: datetime) -> CloudUse:
    """Instances rented now, their price per hour, and what renting cost since midnight UTC."""
    rented = [
        lease for lease in leases if lease.kind == LeaseKind.CLOUD and lease.acquired is not False
    ]
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return CloudUse(
        instances=len(rented),
        price_per_hour=sum((lease.rate_per_hour * lease.units for lease in rented), Decimal(0)),
        spent_today=spent_between(session, midnight, now, unit="instance"),
    )


def boot_outcomes(session: Session, now: datetime, policy: Policy) -> list[BootOutcome]:
    """What became of the machines rented lately, for the breaker."""
    since = now - timedelta(seconds=policy.failover.breaker_open_seconds)
    query = (
        select(Lease)
        .where(Lease.kind == LeaseKind.CLOUD)
        .where(col(Lease.requested_at) > since)
        .where(col(Lease.acquired).is_not(False))
    )
    return [
        BootOutcome(load_offer(lease.offer).key, lease.requested_at, joined, lease.failure)
        for lease in session.exec(query)
        if lease.offer is not None
        and ((joined := lease.ready_at is not None) or lease.failure_kind == "boot")
    ]
