"""Short ways to make core values. Every argument has a default that works."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hybrid.core.lifecycle import LeaseState
from hybrid.core.model import (
    Card,
    Gang,
    LeaseKind,
    LeaseView,
    Market,
    Node,
    NodeShare,
    Offer,
    Requirements,
    Snapshot,
    WaitingJob,
)
from hybrid.core.units import GIB

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """`seconds` after NOW."""
    return NOW + timedelta(seconds=seconds)


def job(
    job_id: str = "job-1",
    gpus: int = 1,
    waited: float = 600.0,
    user: str = "ada",
    nodes: int = 1,
    model: str | None = None,
    cpus: float = 0.0,
    **wishes: Any,
) -> WaitingJob:
    """A job that has waited for `waited` seconds."""
    gang = Gang(
        nodes=nodes,
        gpus_per_node=gpus,
        cpus=cpus or (0.0 if gpus else 1.0),
        gpu_model=model,
        gpu_memory_bytes=wishes.pop("gpu_memory_bytes", 0),
    )
    return WaitingJob(
        id=job_id,
        user=user,
        requirements=Requirements(gang=gang, **wishes),
        environment="",
        submitted_at=at(-waited),
        queued_at=at(-waited),
    )


def node(
    name: str = "n1",
    cards: int = 4,
    model: str = "A100",
    memory_gib: int = 80,
    cpus: float = 16.0,
    held: Iterable[int] = (),
    cordoned: str | None = None,
) -> Node:
    """A node whose cards are ``<name>-c0`` …; those in `held` belong to some lease."""
    taken = set(held)
    return Node(
        id=name,
        address=name,
        cpus=cpus,
        free_cpus=cpus - cpus * len(taken) / max(1, cards),
        memory_bytes=64 * GIB,
        free_memory_bytes=64 * GIB,
        cards=tuple(
            Card(
                f"{name}-c{i}",
                model,
                memory_gib * GIB,
                i,
                held_by=f"lease-of-{name}-c{i}" if i in taken else None,
            )
            for i in range(cards)
        ),
        cordoned=cordoned,
    )


def lease(
    lease_id: str = "lease-1",
    state: LeaseState = LeaseState.BUSY,
    on: str = "n1",
    cards: Iterable[int] = (0,),
    owner: str = "ada",
    ends_in: float | None = None,
    idle_for: float | None = None,
    job_id: str | None = "some-job",
    cpus: float = 4.0,
    kind: LeaseKind = LeaseKind.POOL,
    life: float = 86400.0,
) -> LeaseView:
    """A lease on node `on`; `idle_for` makes it warm."""
    held = tuple(f"{on}-c{i}" for i in cards)
    return LeaseView(
        id=lease_id,
        kind=kind,
        state=LeaseState.READY if idle_for is not None else state,
        owner=owner,
        environment="",
        gang=Gang(gpus_per_node=len(held), cpus=0.0 if held else 1.0),
        shares=(NodeShare(on, held, cpus),),
        job_id=job_id if idle_for is None else None,
        idle_since=None if idle_for is None else at(-idle_for),
        expires_at=at(life),
        requested_at=at(-3600),
        expected_end=None if ends_in is None else at(ends_in),
    )


def offer(
    zone: str = "a",
    gpus: int = 1,
    model: str | None = "A100",
    price: str | None = "3.00",
    market: Market = Market.ON_DEMAND,
    ready: float = 120.0,
    name: str = "big",
    **changes: Any,
) -> Offer:
    values: dict[str, Any] = {
        "provider": "cloud",
        "region": "r1",
        "zone": zone,
        "instance_type": f"{name}.{gpus}",
        "market": market,
        "gpu_model": model,
        "gpus": gpus,
        "gpu_memory_bytes": 80 * GIB if gpus else 0,
        "cpus": 16.0,
        "memory_bytes": 64 * GIB,
        "price_per_hour": None if price is None else Decimal(price),
        "currency": "USD",
        "price_source": "test",
        "price_as_of": NOW,
        "ready_seconds": ready,
    }
    return Offer(**{**values, **changes})


def snapshot(
    jobs: Iterable[WaitingJob] = (),
    nodes: Iterable[Node] = (),
    leases: Iterable[LeaseView] = (),
    offers: Iterable[Offer] = (),
    **changes: Any,
) -> Snapshot:
    return Snapshot(
        now=NOW,
        jobs=tuple(jobs),
        nodes=tuple(nodes),
        leases=tuple(leases),
        offers=tuple(offers),
        **changes,
    )
