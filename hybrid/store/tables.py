"""Every table of Hybrid, one class each. Change one and write a migration beside it."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from sqlalchemy import JSON, Column, Index, Table
from sqlalchemy import Enum as EnumColumn
from sqlmodel import Field, SQLModel

from hybrid.core.lifecycle import AttemptState, JobState, LeaseState
from hybrid.store.types import ExactDecimal, UtcDateTime

Json = dict[str, object]


def _json(nullable: bool = False) -> Column[object]:
    return Column(JSON, nullable=nullable)


def _moment(nullable: bool = True, index: bool = False) -> Column[datetime]:
    return Column(UtcDateTime, nullable=nullable, index=index)


def _state(states: type[StrEnum]) -> Column[str]:
    values = EnumColumn(
        states, values_callable=lambda e: [m.value for m in e], native_enum=False, length=16
    )
    return Column(values, nullable=False, index=True)


def _money(nullable: bool = True) -> Column[Decimal]:
    return Column(ExactDecimal, nullable=nullable)


class Job(SQLModel, table=True):
    """What a user submitted. `requirements` is the JSON of `hybrid.core.model.Requirements`."""

    __tablename__ = "job"
    __table_args__ = (Index("ix_job_submitted_at", "submitted_at"),)

    id: str = Field(primary_key=True)
    user: str = Field(index=True)
    project: str
    state: JobState = Field(sa_column=_state(JobState))
    message: str = ""
    entrypoint: str
    runtime_env: Json = Field(default_factory=dict, sa_column=_json())
    user_metadata: dict[str, str] = Field(default_factory=dict, sa_column=_json())
    entrypoint_num_cpus: float | None = None
    entrypoint_num_gpus: float | None = None
    entrypoint_memory: int | None = None
    entrypoint_resources: dict[str, float] | None = Field(default=None, sa_column=_json(True))
    entrypoint_label_selector: dict[str, str] | None = Field(default=None, sa_column=_json(True))
    requirements: Json = Field(default_factory=dict, sa_column=_json())
    environment: str = ""
    packages: list[str] = Field(default_factory=list, sa_column=_json())
    priority: int = 0
    submitted_at: datetime = Field(sa_column=_moment(False))
    queued_at: datetime = Field(sa_column=_moment(False))
    started_at: datetime | None = Field(default=None, sa_column=_moment())
    ended_at: datetime | None = Field(default=None, sa_column=_moment())
    stop_requested_at: datetime | None = Field(default=None, sa_column=_moment())
    stop_reason: str = ""
    not_before: datetime | None = Field(default=None, sa_column=_moment())
    lease_id: str | None = None
    attempts: int = 0
    boot_failures: int = 0
    error_type: str | None = None
    driver_exit_code: int | None = None
    ray_job_id: str | None = Field(default=None, index=True)
    driver_info: Json | None = Field(default=None, sa_column=_json(True))
    driver_node_id: str | None = None
    driver_agent_http_address: str | None = None


class Attempt(SQLModel, table=True):
    """One try to run a job on one lease."""

    __tablename__ = "attempt"

    id: str = Field(primary_key=True)
    job_id: str = Field(index=True)
    number: int
    lease_id: str = Field(index=True)
    ray_submission_id: str
    state: AttemptState = Field(sa_column=_state(AttemptState))
    created_at: datetime = Field(sa_column=_moment(False))
    started_at: datetime | None = Field(default=None, sa_column=_moment())
    ended_at: datetime | None = Field(default=None, sa_column=_moment())
    cause: str = ""
    exit_code: int | None = None


class Lease(SQLModel, table=True):
    """The right to use a gang's cards from one place, with its frozen rate.

    `acquired` is False only where the outside world said for certain that nothing was given.
    `phase_started_at` is where the next charge line begins; `remains` is what a release still
    waits for.
    """

    __tablename__ = "lease"

    id: str = Field(primary_key=True)
    kind: str
    state: LeaseState = Field(sa_column=_state(LeaseState))
    owner: str
    project: str
    environment: str
    gang: Json = Field(default_factory=dict, sa_column=_json())
    shares: list[Json] = Field(default_factory=list, sa_column=_json())
    offer: Json | None = Field(default=None, sa_column=_json(True))
    instance_ids: list[str] = Field(default_factory=list, sa_column=_json())
    token: str
    cluster_token: str
    endpoint_url: str | None = None
    job_id: str | None = Field(default=None, index=True)
    units: int
    rate_per_hour: Decimal = Field(sa_column=_money(False))
    rate_currency: str
    rate_unit: str
    rate_source: str
    rate_as_of: datetime = Field(sa_column=_moment(False))
    requested_at: datetime = Field(sa_column=_moment(False))
    ready_at: datetime | None = Field(default=None, sa_column=_moment())
    idle_since: datetime | None = Field(default=None, sa_column=_moment())
    releasing_at: datetime | None = Field(default=None, sa_column=_moment())
    released_at: datetime | None = Field(default=None, sa_column=_moment())
    expires_at: datetime = Field(sa_column=_moment(False))
    hard_end_at: datetime = Field(sa_column=_moment(False))
    phase_started_at: datetime = Field(sa_column=_moment(False))
    acquired: bool | None = None
    failure: str = ""
    failure_kind: str = ""
    release_reason: str = ""
    message: str = ""
    remains: str = ""


class Event(SQLModel, table=True):
    """One line of the journal: every transition, with its cause."""

    __tablename__ = "event"

    id: int | None = Field(default=None, primary_key=True)
    at: datetime = Field(sa_column=_moment(False))
    entity: str
    entity_id: str = Field(index=True)
    job_id: str | None = Field(default=None, index=True)
    from_state: str = ""
    to_state: str
    cause: str = ""


class Decision(SQLModel, table=True):
    """The decision record: written when the verdict on a job changes."""

    __tablename__ = "decision"

    id: int | None = Field(default=None, primary_key=True)
    job_id: str = Field(index=True)
    at: datetime = Field(sa_column=_moment(False))
    policy: str
    choice: str
    reason: str
    position: int | None = None
    expected_start: datetime | None = Field(default=None, sa_column=_moment())
    expected_cost: Decimal | None = Field(default=None, sa_column=_money())
    currency: str | None = None
    inputs: Json = Field(default_factory=dict, sa_column=_json())
    alternatives: list[Json] = Field(default_factory=list, sa_column=_json())
    outcome: Json | None = Field(default=None, sa_column=_json(True))


class Charge(SQLModel, table=True):
    """One append-only ledger line: `amount` = units × seconds × rate, to 1e-9."""

    __tablename__ = "charge"

    id: int | None = Field(default=None, primary_key=True)
    lease_id: str = Field(index=True)
    job_id: str | None = Field(default=None, index=True)
    attempt: int | None = None
    user: str
    project: str
    place: str
    kind: str
    start_at: datetime = Field(sa_column=_moment(False, index=True))
    end_at: datetime = Field(sa_column=_moment(False))
    units: int
    unit: str
    seconds: Decimal = Field(sa_column=_money(False))
    rate_per_hour: Decimal = Field(sa_column=_money(False))
    rate_source: str
    rate_as_of: datetime = Field(sa_column=_moment(False))
    amount: Decimal = Field(sa_column=_money(False))
    currency: str


class NodeMark(SQLModel, table=True):
    """An admin's word on a node: cordoned (no new leases) or draining (and told why)."""

    __tablename__ = "node_mark"

    node_id: str = Field(primary_key=True)
    draining: bool = False
    reason: str = ""
    by: str = ""
    at: datetime = Field(sa_column=_moment(False))


class CardMark(SQLModel, table=True):
    """A quarantined card and why."""

    __tablename__ = "card_mark"

    uuid: str = Field(primary_key=True)
    node_id: str
    reason: str
    at: datetime = Field(sa_column=_moment(False))


class LaunchMiss(SQLModel, table=True):
    """The negative cache: an offer that just failed and until when it is left alone."""

    __tablename__ = "launch_miss"

    offer_key: str = Field(primary_key=True)
    kind: str
    reason: str
    at: datetime = Field(sa_column=_moment(False))
    until: datetime = Field(sa_column=_moment(False))


class ApiToken(SQLModel, table=True):
    """A token's hash, who it speaks for and what it may do. The secret itself is never stored."""

    __tablename__ = "api_token"

    id: str = Field(primary_key=True)
    sha256: str = Field(unique=True)
    user: str
    role: str
    note: str = ""
    created_at: datetime = Field(sa_column=_moment(False))
    expires_at: datetime | None = Field(default=None, sa_column=_moment())
    revoked_at: datetime | None = Field(default=None, sa_column=_moment())


class PolicyApplied(SQLModel, table=True):
    """The policies that were in force, newest last; the text is kept whole."""

    __tablename__ = "policy_applied"

    id: int | None = Field(default=None, primary_key=True)
    name: str
    sha256: str
    text: str
    at: datetime = Field(sa_column=_moment(False))
    by: str = ""


class Meta(SQLModel, table=True):
    """Facts about this installation: orchestrator id, session name."""

    __tablename__ = "meta"

    key: str = Field(primary_key=True)
    value: str


def table_of(row: type[SQLModel]) -> Table:
    """The plain table behind a class, for statements that write many rows at once."""
    return SQLModel.metadata.tables[str(row.__tablename__)]
