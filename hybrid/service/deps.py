"""What the controller is wired with (see `hybrid.bootstrap`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hybrid.core.model import LeaseKind, Offer
from hybrid.ports import Clock, Endpoint, LeaseBackend, PoolInventory, RayCluster
from hybrid.service.policies import PoliciesInForce
from hybrid.store.engine import Store
from hybrid.store.logs import LogStore
from hybrid.store.packages import PackageStore
from hybrid.store.tables import Lease


class SystemClock:
    """The machine's clock in UTC."""

    def now(self) -> datetime:
        return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class OffersSeen:
    """The offers of every provider that answered, and why the others did not."""

    offers: tuple[Offer, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServiceDeps:
    """`checkpoint` is called with a name after each outside call, before its result is stored."""

    store: Store
    clock: Clock
    orchestrator_id: str
    ray_version: str
    pool: PoolInventory
    backends: Mapping[LeaseKind, LeaseBackend]
    list_offers: Callable[[], OffersSeen]
    connect: Callable[[Endpoint], RayCluster]
    logs: LogStore
    packages: PackageStore
    policies: PoliciesInForce
    checkpoint: Callable[[str], None]
    collect_packages: Callable[[], None]
    tick_seconds: float = 2.0

    def backend_of(self, lease: Lease) -> LeaseBackend:
        return self.backends[LeaseKind(lease.kind)]
