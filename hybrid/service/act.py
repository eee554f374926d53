"""Turn a plan into written intent: one transaction, each action checked against the present."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlmodel import Session

from hybrid.core.lifecycle import JobState, LeaseState
from hybrid.core.model import (
    Action,
    Burst,
    Choice,
    Gang,
    LeaseKind,
    Plan,
    RefuseJob,
    ReleaseLease,
    Snapshot,
    StartOnPool,
    StartOnWarm,
    Verdict,
)
from hybrid.core.policy import Policy
from hybrid.core.rates import offer_rate, pool_rate
from hybrid.core.units import Rate
from hybrid.store.codec import dump_gang, dump_offer, dump_shares
from hybrid.store.ids import new_id, step_token
from hybrid.store.jobs import move_job, queued_jobs
from hybrid.store.journal import record_decisions
from hybrid.store.leases import add_lease, get_lease, move_lease
from hybrid.store.tables import Job, Json, Lease


@dataclass(slots=True)
class Recorded:
    """Which verdict of each waiting job is already in the decision records.

    A job that only waits on has one record, not one a round.
    """

    choices: dict[str, tuple[Choice, datetime]] = field(default_factory=dict)

    def is_news(self, verdict: Verdict, queued_at: datetime) -> bool:
        key = (verdict.choice, queued_at)
        if self.choices.get(verdict.job_id) == key:
            return False
        self.choices[verdict.job_id] = key
        return True

    def forget_all_but(self, job_ids: frozenset[str]) -> None:
        for job_id in self.choices.keys() - job_ids:
            del self.choices[job_id]


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of a plan: leases whose drivers have something to do, sentences for the logs."""

    leases: tuple[str, ...]
    said: Mapping[str, str]


def apply_plan(
    session: Session,
    plan: Plan,
    snapshot: Snapshot,
    policy: Policy,
    policy_name: str,
    recorded: Recorded,
    now: datetime,
) -> Applied:
    """Write the intents of `plan`. An action that the world has overtaken is left out: the next
    round sees the world as it is. Only news is written: how long each job still waits changes
    with every round and is told from memory (`Controller.sentences`)."""
    queued_at = {job.id: job.queued_at for job in snapshot.jobs}
    said: dict[str, str] = {}
    news = {
        verdict.job_id: verdict
        for verdict in plan.verdicts
        if verdict.job_id in queued_at and recorded.is_news(verdict, queued_at[verdict.job_id])
    }
    made: list[tuple[Verdict, Json]] = []
    for job in queued_jobs(session, news):
        verdict = news[job.id]
        job.message = said[job.id] = verdict.reason
        made.append((verdict, _inputs(job)))
    record_decisions(session, made, policy_name, now)
    recorded.forget_all_but(frozenset(verdict.job_id for verdict in plan.verdicts))
    models = {card.uuid: card.model for node in snapshot.nodes for card in node.cards}
    touched = [
        lease_id
        for action in plan.actions
        if (lease_id := _apply(session, action, policy, models, now)) is not None
    ]
    return Applied(tuple(touched), said)


def _inputs(job: Job) -> Json:
    return {
        "requirements": job.requirements,
        "submitted_at": job.submitted_at.isoformat(),
        "queued_at": job.queued_at.isoformat(),
        "attempts": job.attempts,
    }


def _apply(
    session: Session, action: Action, policy: Policy, models: Mapping[str, str], now: datetime
) -> str | None:
    match action:
        case StartOnPool():
            cards = frozenset(models[u] for share in action.shares for u in share.cards)
            rate = pool_rate(cards, policy, now)
            return _request(session, action, rate, policy, now)
        case Burst():
            return _request(session, action, offer_rate(action.offer), policy, now)
        case StartOnWarm():
            return _reuse(session, action, now)
        case ReleaseLease():
            lease = get_lease(session, action.lease_id)
            if lease is None or lease.state is not LeaseState.READY or lease.job_id is not None:
                return None
            move_lease(session, lease, LeaseState.RELEASING, action.reason, now)
            return lease.id
        case RefuseJob():
            job = _queued(session, action.job_id)
            if job is not None:
                job.message = action.reason
                move_job(session, job, JobState.FAILED, action.reason, now)
            return None


def _queued(session: Session, job_id: str) -> Job | None:
    job = session.get(Job, job_id)
    if job is None or job.state is not JobState.QUEUED or job.stop_requested_at is not None:
        return None
    return job


def _reuse(session: Session, action: StartOnWarm, now: datetime) -> str | None:
    job = _queued(session, action.job_id)
    lease = get_lease(session, action.lease_id)
    if job is None or lease is None:
        return None
    if lease.state is not LeaseState.READY or lease.job_id is not None:
        return None
    lease.job_id, job.lease_id = job.id, lease.id
    lease.project = job.project
    session.add(lease)
    move_job(session, job, JobState.STARTING, action.reason, now)
    return lease.id


def _request(
    session: Session, action: StartOnPool | Burst, rate: Rate, policy: Policy, now: datetime
) -> str | None:
    """Write the intent to acquire a lease for the action's job."""
    job = _queued(session, action.job_id)
    if job is None:
        return None
    lease_id = new_id("lease", now)
    lease = Lease(
        id=lease_id,
        kind=LeaseKind.POOL if isinstance(action, StartOnPool) else LeaseKind.CLOUD,
        state=LeaseState.REQUESTED,
        owner=job.user,
        project=job.project,
        environment=job.environment,
        gang=dump_gang(action.gang),
        shares=dump_shares(action.shares) if isinstance(action, StartOnPool) else [],
        offer=dump_offer(action.offer) if isinstance(action, Burst) else None,
        token=step_token(lease_id, "acquire"),
        cluster_token=secrets.token_hex(32),
        job_id=job.id,
        units=_units(action.gang, rate),
        rate_per_hour=rate.per_hour,
        rate_currency=rate.currency,
        rate_unit=rate.unit,
        rate_source=rate.source,
        rate_as_of=rate.as_of,
        requested_at=now,
        phase_started_at=now,
        expires_at=now + timedelta(seconds=policy.leases.lease_seconds),
        hard_end_at=now + timedelta(seconds=policy.leases.max_lifetime_seconds),
    )
    job.lease_id = lease_id
    add_lease(session, lease, action.reason)
    move_job(session, job, JobState.STARTING, action.reason, now)
    return lease_id


def _units(gang: Gang, rate: Rate) -> int:
    if rate.unit == "instance":
        return gang.nodes
    if rate.unit == "card":
        return gang.gpus
    return max(1, math.ceil(gang.cpus * gang.nodes))
