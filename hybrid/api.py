"""The models of Hybrid's own HTTP API (`/api/hybrid/v1`), shared by the gateway and the CLI.

They are an interface: fields are added, never renamed or given another meaning. Money is a
decimal string with a currency beside it, moments are ISO-8601 in UTC, durations are seconds.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from pydantic import BaseModel, ConfigDict

PREFIX = "/api/hybrid/v1"


class Model(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class AttemptOut(Model):
    number: int
    state: str
    lease_id: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    cause: str
    exit_code: int | None


class JobOut(Model):
    """A row of `hybrid job ls`. `gang` is a phrase, `place` where it runs or ran."""

    id: str
    user: str
    project: str
    state: str
    message: str
    entrypoint: str
    gang: str
    priority: int
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    lease_id: str | None
    place: str | None
    attempts: int
    expected_start: datetime | None = None


class JobDetail(JobOut):
    """`hybrid job show`. `cost` sums the ledger lines (and what accrues now), per currency."""

    requirements: dict[str, object]
    runtime_env: dict[str, object]
    metadata: dict[str, str]
    error_type: str | None
    driver_exit_code: int | None
    stop_requested_at: datetime | None
    history: list[AttemptOut]
    cost: dict[str, Decimal]


class DecisionOut(Model):
    id: int
    job_id: str
    at: datetime
    policy: str
    choice: str
    reason: str
    position: int | None
    expected_start: datetime | None
    expected_cost: Decimal | None
    currency: str | None
    inputs: dict[str, object]
    alternatives: list[dict[str, object]]
    outcome: dict[str, object] | None


class LeaseOut(Model):
    """`where` is the nodes with their cards, or provider, type and zone."""

    id: str
    kind: str
    state: str
    owner: str
    project: str
    gang: str
    where: str
    job_id: str | None
    requested_at: datetime
    ready_at: datetime | None
    released_at: datetime | None
    expires_at: datetime
    hard_end_at: datetime
    rate_per_hour: Decimal
    units: int
    currency: str
    message: str
    failure: str
    remains: str
    instance_ids: list[str]
    endpoint_url: str | None


class CardOut(Model):
    uuid: str
    index: int
    model: str
    memory_bytes: int
    held_by: str | None
    unusable: str | None


class NodeOut(Model):
    id: str
    address: str
    cpus: float
    free_cpus: float
    memory_bytes: int
    cordoned: str | None
    draining: bool
    cards: list[CardOut]


class PoolOut(Model):
    available: bool
    note: str
    nodes: list[NodeOut]


class OfferOut(Model):
    """`unavailable` says why the offer is not tried now, or is None."""

    provider: str
    region: str
    zone: str
    instance_type: str
    market: str
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
    unavailable: str | None


class ChargeOut(Model):
    """One ledger line; `id` is None while it is still accruing."""

    id: int | None
    lease_id: str
    job_id: str | None
    attempt: int | None
    user: str
    project: str
    place: str
    kind: str
    start_at: datetime
    end_at: datetime
    units: int
    unit: str
    seconds: Decimal
    rate_per_hour: Decimal
    rate_source: str
    rate_as_of: datetime
    amount: Decimal
    currency: str


class CostRow(Model):
    """A line of `hybrid report cost`: `amounts` is per kind of charge; `total` sums them."""

    key: str
    currency: str
    amounts: dict[str, Decimal]
    total: Decimal
    unit_hours: Decimal


class CostReport(Model):
    """`accruing` is the part of the totals whose lines are not closed yet."""

    start: datetime
    end: datetime
    by: str
    rows: list[CostRow]
    totals: dict[str, Decimal]
    accruing: dict[str, Decimal]


class EventOut(Model):
    id: int
    at: datetime
    entity: str
    entity_id: str
    job_id: str | None
    from_state: str
    to_state: str
    cause: str


class ProviderOut(Model):
    """`error` says why a plugin could not be loaded or asked, and what to do."""

    name: str
    package: str
    loaded: bool
    error: str | None
    offers: int


class CheckLineOut(Model):
    name: str
    ok: bool
    detail: str
    hint: str


class LeakOut(Model):
    """A rented machine that no live lease explains."""

    provider: str
    instance_id: str
    lease_id: str
    state: str
    age_seconds: float | None
    detail: str
    terminated: bool


class TokenOut(Model):
    id: str
    user: str
    role: str
    note: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class TokenCreated(TokenOut):
    """The answer to creating a token: the only time its secret is told."""

    secret: str


class TokenIn(Model):
    user: str
    role: str = "user"
    note: str = ""
    expires_at: datetime | None = None


class PolicyOut(Model):
    name: str
    sha256: str
    text: str
    source: str
    in_force: bool
    error: str | None = None


class PolicyIn(Model):
    """`name` of a known policy, or `text` of a new one called `name`."""

    name: str
    text: str | None = None


class StatusOut(Model):
    """`hybrid status`. `tick_error` is the last round's failure, if it failed."""

    version: str
    ray_version: str
    orchestrator_id: str
    started_at: datetime
    policy: str
    policy_error: str | None
    jobs: dict[str, int]
    leases: dict[str, int]
    cards_total: int
    cards_free: int
    cards_unusable: int
    pool_available: bool
    pool_note: str
    rented_instances: int
    rented_per_hour: Decimal
    spent_today: Decimal
    currency: str
    last_tick_at: datetime | None
    tick_seconds: float | None
    tick_error: str | None


class NodeMarkIn(Model):
    reason: str = ""


class ErrorOut(Model):
    """Every refusal of the Hybrid API: what, a hint, and a code for `hybrid explain`."""

    error: str
    hint: str = ""
    code: str = ""
