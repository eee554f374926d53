"""Rows of the store as the models of Hybrid's API."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlmodel import Session

from hybrid import api
from hybrid.core.lifecycle import JobState
from hybrid.store.codec import load_gang, load_offer, load_requirements, load_shares
from hybrid.store.jobs import attempts_of
from hybrid.store.leases import get_lease
from hybrid.store.ledger import accruing, charges_of_job
from hybrid.store.tables import Charge, Job, Lease


@dataclass(frozen=True, slots=True)
class Known:
    """What the controller knows of waiting jobs beyond their rows."""

    starts: Mapping[str, datetime]
    sentences: Mapping[str, str]


def message_of(job: Job, sentences: Mapping[str, str]) -> str:
    """While a job is queued, the last round's sentence; else what its row says."""
    if job.state is JobState.QUEUED:
        return sentences.get(job.id, job.message)
    return job.message


def job_out(session: Session, job: Job, now_known: Known) -> api.JobOut:
    return api.JobOut(**_job_fields(session, job, now_known))


def _job_fields(session: Session, job: Job, now_known: Known) -> dict[str, object]:
    lease = get_lease(session, job.lease_id) if job.lease_id else None
    return {
        "id": job.id,
        "user": job.user,
        "project": job.project,
        "state": str(job.state),
        "message": message_of(job, now_known.sentences),
        "entrypoint": job.entrypoint,
        "gang": load_requirements(job.requirements).gang.describe() if job.requirements else "",
        "priority": job.priority,
        "submitted_at": job.submitted_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "lease_id": job.lease_id,
        "place": lease_where(lease) if lease is not None else None,
        "attempts": job.attempts,
        "expected_start": now_known.starts.get(job.id),
    }


def job_detail(session: Session, job: Job, now_known: Known, now: datetime) -> api.JobDetail:
    lines = [*charges_of_job(session, job.id)]
    lines += [line for line in accruing(session, now) if line.job_id == job.id]
    cost: dict[str, Decimal] = defaultdict(Decimal)
    for line in lines:
        cost[line.currency] += line.amount
    return api.JobDetail(
        **_job_fields(session, job, now_known),
        requirements=job.requirements,
        runtime_env=job.runtime_env,
        metadata=job.user_metadata,
        error_type=job.error_type,
        driver_exit_code=job.driver_exit_code,
        stop_requested_at=job.stop_requested_at,
        history=[
            api.AttemptOut(
                number=a.number,
                state=str(a.state),
                lease_id=a.lease_id,
                created_at=a.created_at,
                started_at=a.started_at,
                ended_at=a.ended_at,
                cause=a.cause,
                exit_code=a.exit_code,
            )
            for a in attempts_of(session, job.id)
        ],
        cost=dict(cost),
    )


def lease_where(lease: Lease) -> str:
    """The nodes with their cards, or provider, type and zone."""
    if lease.offer is not None:
        return load_offer(lease.offer).key
    parts = []
    for share in load_shares(lease.shares):
        cards = f" [{', '.join(share.cards)}]" if share.cards else ""
        parts.append(f"{share.node}{cards}")
    return ", ".join(parts)


def lease_out(lease: Lease) -> api.LeaseOut:
    return api.LeaseOut(
        id=lease.id,
        kind=lease.kind,
        state=str(lease.state),
        owner=lease.owner,
        project=lease.project,
        gang=load_gang(lease.gang).describe(),
        where=lease_where(lease),
        job_id=lease.job_id,
        requested_at=lease.requested_at,
        ready_at=lease.ready_at,
        released_at=lease.released_at,
        expires_at=lease.expires_at,
        hard_end_at=lease.hard_end_at,
        rate_per_hour=lease.rate_per_hour,
        units=lease.units,
        currency=lease.rate_currency,
        message=lease.message,
        failure=lease.failure,
        remains=lease.remains,
        instance_ids=lease.instance_ids,
        endpoint_url=lease.endpoint_url,
    )


def charges_out(lines: Sequence[Charge]) -> list[api.ChargeOut]:
    return [api.ChargeOut.model_validate(line) for line in lines]
