"""What the shell needs from the outside, as Protocols and the values that cross them.

A provider plugin imports only this module, `hybrid.core.model` and `hybrid.testing`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Protocol, runtime_checkable

from hybrid.core.model import Gang, LeaseKind, NodeShare, Offer

# --------------------------------------------------------------------------- time


class Clock(Protocol):
    """The one source of `now` (UTC, timezone-aware)."""

    def now(self) -> datetime: ...


# --------------------------------------------------------------------------- providers


class InstanceState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Everything a provider needs to rent `count` machines of one offer, all or nothing.

    `token` makes the call idempotent for ever: the same token returns the same instances, and
    the same token with another request raises `BadParameter`. `expires_at` is a hard lifetime
    that the provider enforces by itself where it can; `user_data` carries our own timer anyway.
    """

    token: str
    offer: Offer
    count: int
    user_data: str
    tags: Mapping[str, str]
    expires_at: datetime
    price_ceiling: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Instance:
    """A rented machine as the provider describes it now. `state_reason` is the provider's word."""

    id: str
    state: InstanceState
    provider: str
    zone: str
    instance_type: str
    tags: Mapping[str, str] = field(default_factory=dict)
    launched_at: datetime | None = None
    ended_at: datetime | None = None
    state_reason: str = ""
    reclaimed: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to reach a lease's Ray Jobs API: an HTTP base address and its bearer token."""

    url: str
    token: str


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One line of `hybrid provider check`."""

    name: str
    ok: bool
    detail: str
    hint: str = ""


class ErrorKind(StrEnum):
    CAPACITY = "capacity"
    QUOTA = "quota"
    AUTH = "auth"
    UNSUPPORTED = "unsupported"
    BAD_PARAMETER = "bad-parameter"
    THROTTLED = "throttled"
    UNKNOWN = "unknown"


class ProviderError(Exception):
    """A provider refused or failed; `kind` decides what Hybrid does next."""

    kind: ErrorKind = ErrorKind.UNKNOWN


class OutOfCapacity(ProviderError):
    """The provider has no such machine in that zone now: another offer is tried."""

    kind = ErrorKind.CAPACITY


class QuotaExceeded(ProviderError):
    """The account may not rent that many: only a person or another region can help."""

    kind = ErrorKind.QUOTA


class Denied(ProviderError):
    """Credentials are absent, expired or lack a permission."""

    kind = ErrorKind.AUTH


class Unsupported(ProviderError):
    """The provider does not offer that combination at all."""

    kind = ErrorKind.UNSUPPORTED


class BadParameter(ProviderError):
    """The request itself is wrong, or a token was reused for another request."""

    kind = ErrorKind.BAD_PARAMETER


class Throttled(ProviderError):
    """Too many calls: the same call may succeed later."""

    kind = ErrorKind.THROTTLED


@runtime_checkable
class Provider(Protocol):
    """A source of rented machines. Plain blocking code; decides nothing, retries nothing."""

    name: str

    def offers(self) -> Sequence[Offer]:
        """What can be rented now, with price and expected seconds to ready. No side effects."""

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        """Rent `request.count` machines; idempotent by `request.token`."""

    def instances(self) -> Sequence[Instance]:
        """Every machine that carries our orchestrator tag, in every state still known."""

    def terminate(self, instance_id: str) -> None:
        """Ask for the machine to be destroyed. Gone or unknown is success."""


@runtime_checkable
class Reachable(Protocol):
    """Optional: a provider whose machines can be reached without SSH (the local one)."""

    def endpoint(self, instance_id: str) -> str | None:
        """The address of the Ray dashboard on that machine once it is up, else None."""

    def boot_log(self, instance_id: str) -> str:
        """The last lines of the machine's own boot log, for messages about a failed boot."""

    def sweep(self, instance_id: str, attempt_id: str) -> int:
        """Kill what an attempt left running there (see `LeaseBackend.sweep`); how many are left."""


@runtime_checkable
class Checkable(Protocol):
    """Optional: what `hybrid provider check NAME` prints."""

    def check(self) -> Sequence[CheckLine]: ...


# --------------------------------------------------------------------------- leases


@dataclass(frozen=True, slots=True)
class LeaseTask:
    """What a backend must know to bring a lease up, keep it and end it.

    `token` is the idempotency token of the lease, `cluster_token` the secret of its Ray cluster.
    `shares` is set for pool leases; `offer`, `tags` and `price_ceiling` for cloud leases.
    """

    id: str
    kind: LeaseKind
    token: str
    cluster_token: str
    gang: Gang
    expires_at: datetime
    shares: tuple[NodeShare, ...] = ()
    offer: Offer | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    instance_ids: tuple[str, ...] = ()
    price_ceiling: Decimal | None = None
    #: The hard end of the lease. `expires_at` is the fence, renewed while the lease is healthy;
    #: a place that cannot be told of renewals uses this one.
    hard_end_at: datetime | None = None
    requested_at: datetime | None = None
    #: True once the outside accepted, False once it surely refused, None while nobody knows.
    acquired: bool | None = None


@dataclass(frozen=True, slots=True)
class Acquired:
    """The outside world accepted the lease: these cards, or these instances."""

    shares: tuple[NodeShare, ...] = ()
    instance_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a booting lease stands. Exactly one of `endpoint` / `failed` ends the wait."""

    message: str
    endpoint: Endpoint | None = None
    failed: str | None = None


class Health(StrEnum):
    ALIVE = "alive"
    UNREACHABLE = "unreachable"
    """Cannot be asked now: the fence decides, not we."""
    GONE = "gone"
    """Observed ended: nothing of it runs any more."""


@dataclass(frozen=True, slots=True)
class LeaseHealth:
    """`reclaimed` is True where the provider took the machine (spot), not a fault."""

    health: Health
    reason: str = ""
    reclaimed: bool = False


class LeaseUnavailable(Exception):
    """A lease could not be acquired. `kind` says whether to look elsewhere (capacity) or not."""

    def __init__(self, reason: str, kind: ErrorKind = ErrorKind.CAPACITY) -> None:
        super().__init__(reason)
        self.kind = kind


class LeaseBackend(Protocol):
    """Brings leases up and down: one implementation for the pool, one for all providers.

    Every method is idempotent by the lease's id and token, may be called again after a crash at
    any point, and may raise `LeaseUnavailable` only from `acquire`. Any other exception means
    "try again later".
    """

    async def acquire(self, task: LeaseTask) -> Acquired:
        """Reserve the cards or launch the instances. Safe to repeat."""

    async def progress(self, task: LeaseTask) -> Progress:
        """Push a booting lease on (start its Ray cluster where that is ours to do) and look."""

    async def health(self, task: LeaseTask) -> LeaseHealth:
        """Is the lease's machine or guard still there?"""

    async def renew(self, task: LeaseTask, expires_at: datetime) -> None:
        """Move the fence that the lease's own node enforces."""

    async def sweep(self, task: LeaseTask, attempt_id: str) -> str | None:
        """After a job's end: kill what it left running in the lease (every process whose
        environment has HYBRID_ATTEMPT_ID=attempt_id). None once nothing is left, else what."""

    async def release(self, task: LeaseTask) -> str | None:
        """Push the teardown on. None once everything is *observed* gone, else what remains."""

    async def found(self) -> Mapping[str, str]:
        """Every lease of this orchestrator that exists out there: lease id → what it is."""


# --------------------------------------------------------------------------- pool


@dataclass(frozen=True, slots=True)
class CardInfo:
    """A card as its node reports it."""

    uuid: str
    model: str
    memory_bytes: int
    index: int
    unusable: str | None = None


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A live member of the standing Ray cluster with its agent's inventory.

    `free_cpus`, `free_memory_bytes` are what Ray has not reserved.
    """

    id: str
    ray_node_id: str
    address: str
    cpus: float
    free_cpus: float
    memory_bytes: int
    free_memory_bytes: int
    cards: tuple[CardInfo, ...]
    resources: tuple[tuple[str, float], ...] = ()
    free_gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolView:
    """The pool at one moment; `note` says why where Ray cannot be asked (`available` False)."""

    available: bool
    nodes: tuple[PoolNode, ...] = ()
    note: str = ""


class PoolInventory(Protocol):
    async def view(self) -> PoolView: ...


# --------------------------------------------------------------------------- a lease's Ray cluster


@dataclass(frozen=True, slots=True)
class RayJob:
    """A job as a lease's Ray dashboard reports it (its `JobDetails`, the fields we use)."""

    status: str
    message: str | None
    error_type: str | None
    driver_exit_code: int | None
    start_time_ms: int | None
    end_time_ms: int | None
    job_id: str | None
    driver_info: Mapping[str, str] | None
    driver_node_id: str | None
    driver_agent_http_address: str | None


class ClusterUnreachable(Exception):
    """The lease's dashboard did not answer in time: says nothing about the job."""


class ClusterRefused(Exception):
    """The lease's dashboard answered with an error status; the text is the body."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class RayCluster(Protocol):
    """A client of one lease's Ray Jobs API. All calls have time-outs."""

    async def version(self) -> Mapping[str, str]: ...
    async def put_package(self, name: str, path: str) -> None:
        """GET, then stream the file with PUT where it is absent (which also pins it)."""

    async def submit(self, body: Mapping[str, object]) -> None:
        """POST; a submission_id that exists already is success."""

    async def job(self, submission_id: str) -> RayJob | None:
        """None where the cluster answers 404."""

    async def stop(self, submission_id: str) -> bool: ...
    def tail(self, submission_id: str, skip_bytes: int) -> AsyncIterator[bytes]:
        """Log bytes after the first `skip_bytes`; the end of the iteration means nothing."""

    async def logs(self, submission_id: str) -> bytes: ...
    async def unmet_demand(self) -> str | None:
        """Words for pending demand that this cluster can never meet, or None."""

    async def size(self) -> tuple[int, float]:
        """How many nodes have joined, and the GPUs of all of them."""

    async def close(self) -> None: ...
