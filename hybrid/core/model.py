"""The nouns of Hybrid as immutable values (the glossary of the design document).

Durations are seconds (float), sizes are bytes (int), moments are timezone-aware UTC datetimes,
money is `Decimal` with a currency. `None` means *unknown* or *not asked for*, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from hybrid.core.lifecycle import LeaseState
from hybrid.core.units import Money


class Place(StrEnum):
    """Where the user lets a job run (`hybrid.place`)."""

    ANY = "any"
    ONPREM = "onprem"
    CLOUD = "cloud"


class MarketChoice(StrEnum):
    """What the user allows to be rented (`hybrid.market`)."""

    ON_DEMAND = "on-demand"
    SPOT_OK = "spot-ok"
    SPOT = "spot"


class Market(StrEnum):
    """How an offer is sold."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


class LeaseKind(StrEnum):
    POOL = "pool"
    CLOUD = "cloud"


@dataclass(frozen=True, slots=True)
class Gang:
    """The resources that a job needs together, all or nothing.

    All figures but `nodes` are per node. `gpus_per_node` counts whole cards.
    """

    nodes: int = 1
    gpus_per_node: int = 0
    cpus: float = 1.0
    memory_bytes: int = 0
    gpu_model: str | None = None
    gpu_memory_bytes: int = 0
    resources: tuple[tuple[str, float], ...] = ()

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    def describe(self) -> str:
        """A short phrase for people: ``2 nodes x 4 A100`` or ``1 CPU``."""
        if not self.gpus_per_node:
            what = f"{self.cpus:g} CPU"
        else:
            what = f"{self.gpus_per_node} {self.gpu_model or 'GPU'}"
        return what if self.nodes == 1 else f"{self.nodes} nodes x {what}"


@dataclass(frozen=True, slots=True)
class Requirements:
    """What the user asked for, validated: the gang and the `hybrid.*` wishes."""

    gang: Gang
    place: Place = Place.ANY
    market: MarketChoice = MarketChoice.ON_DEMAND
    project: str = "default"
    priority: int = 0
    deadline: datetime | None = None
    max_cost: Decimal | None = None
    max_runtime_seconds: float | None = None
    runtime_estimate_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A queued job as the planner sees it. `queued_at` restarts with each attempt."""

    id: str
    user: str
    requirements: Requirements
    environment: str
    submitted_at: datetime
    queued_at: datetime
    attempts: int = 0
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU (or MIG slice). `held_by` is the lease that has it, from the allocation record.

    `unusable` says in words why the card may not be given out (quarantine, outside use), or is
    None for a card in order.
    """

    uuid: str
    model: str
    memory_bytes: int
    index: int
    held_by: str | None = None
    unusable: str | None = None

    @property
    def free(self) -> bool:
        return self.held_by is None and self.unusable is None


@dataclass(frozen=True, slots=True)
class Node:
    """An on-prem machine of the pool. `id` is stable over restarts (host name or address)."""

    id: str
    address: str
    cpus: float
    free_cpus: float
    memory_bytes: int
    free_memory_bytes: int
    cards: tuple[Card, ...] = ()
    cordoned: str | None = None
    resources: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The part of one node that a lease takes: these cards, this many CPUs and bytes."""

    node: str
    cards: tuple[str, ...]
    cpus: float
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that can be rented now. A price of None is unknown and never eligible."""

    provider: str
    region: str
    zone: str
    instance_type: str
    market: Market
    gpu_model: str | None
    gpus: int
    gpu_memory_bytes: int
    cpus: float
    memory_bytes: int
    price_per_hour: Decimal | None
    currency: str
    price_source: str
    price_as_of: datetime
    ready_seconds: float

    @property
    def key(self) -> str:
        """Identifies the capacity pool behind the offer: provider/zone/type/market."""
        return f"{self.provider}/{self.zone}/{self.instance_type}/{self.market}"


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease as the planner sees it.

    `idle_since` is set while the lease is warm, `job_id` while it is meant for or serves a job
    (a busy lease without one is being tidied up after its job), `expected_end` where the end of
    its job can be told.
    """

    id: str
    kind: LeaseKind
    state: LeaseState
    owner: str
    environment: str
    gang: Gang
    shares: tuple[NodeShare, ...] = ()
    offer: Offer | None = None
    job_id: str | None = None
    idle_since: datetime | None = None
    expires_at: datetime | None = None
    requested_at: datetime | None = None
    expected_end: datetime | None = None


@dataclass(frozen=True, slots=True)
class CloudUse:
    """What is rented now and was spent today, for the caps of the policy."""

    instances: int = 0
    price_per_hour: Decimal = Decimal(0)
    spent_today: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that one planning round may look at."""

    now: datetime
    jobs: tuple[WaitingJob, ...] = ()
    nodes: tuple[Node, ...] = ()
    leases: tuple[LeaseView, ...] = ()
    offers: tuple[Offer, ...] = ()
    #: Offer key → why it is not tried now (negative cache, open breaker).
    unavailable: Mapping[str, str] = field(default_factory=dict)
    cloud_use: CloudUse = CloudUse()
    pool_available: bool = True
    pool_note: str = ""


class Choice(StrEnum):
    """What the planner decided for one job."""

    START = "start"
    REUSE = "reuse"
    BURST = "burst"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One option that was weighed: what, when it would start, what it would cost, why not."""

    what: str
    expected_start: datetime | None
    expected_cost: Money | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on one job, in words and figures."""

    job_id: str
    choice: Choice
    reason: str
    position: int | None = None
    expected_start: datetime | None = None
    expected_cost: Money | None = None
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class StartOnPool:
    job_id: str
    gang: Gang
    shares: tuple[NodeShare, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class StartOnWarm:
    job_id: str
    lease_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Burst:
    """Rent this offer for a job. If it fails, the next round decides anew without it."""

    job_id: str
    gang: Gang
    offer: Offer
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseLease:
    lease_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RefuseJob:
    """End a waiting job that can never start."""

    job_id: str
    reason: str


Action = StartOnPool | StartOnWarm | Burst | ReleaseLease | RefuseJob


@dataclass(frozen=True, slots=True)
class Plan:
    """What one round wants done, and a verdict for every waiting job."""

    actions: tuple[Action, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
