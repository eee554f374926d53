"""Events and decision records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import insert
from sqlmodel import Session, col, select

from hybrid.core.lifecycle import State
from hybrid.core.model import Verdict
from hybrid.store.codec import dump_alternatives
from hybrid.store.tables import Decision, Event, Json, table_of


def record_transition(
    session: Session,
    entity: str,
    entity_id: str,
    source: State | None,
    target: State,
    cause: str,
    at: datetime,
    job_id: str | None = None,
) -> None:
    """Journal one transition and name it as a step of this transaction."""
    session.add(
        Event(
            at=at,
            entity=entity,
            entity_id=entity_id,
            job_id=job_id,
            from_state=str(source or ""),
            to_state=str(target),
            cause=cause,
        )
    )
    session.info["steps"].append(f"{entity}:{target}")


def events_after(
    session: Session, after_id: int, limit: int = 1000, job_id: str | None = None
) -> Sequence[Event]:
    query = select(Event).where(col(Event.id) > after_id).order_by(col(Event.id)).limit(limit)
    if job_id is not None:
        query = query.where(Event.job_id == job_id)
    return session.exec(query).all()


def record_decisions(
    session: Session, made: Sequence[tuple[Verdict, Json]], policy: str, at: datetime
) -> None:
    """Write a decision record for each verdict, with the inputs that it was made from."""
    if made:
        session.execute(
            insert(table_of(Decision)), [_columns(v, inputs, policy, at) for v, inputs in made]
        )


def _columns(verdict: Verdict, inputs: Json, policy: str, at: datetime) -> dict[str, object]:
    cost = verdict.expected_cost
    return {
        "job_id": verdict.job_id,
        "at": at,
        "policy": policy,
        "choice": verdict.choice,
        "reason": verdict.reason,
        "position": verdict.position,
        "expected_start": verdict.expected_start,
        "expected_cost": cost.amount if cost else None,
        "currency": cost.currency if cost else None,
        "inputs": inputs,
        "alternatives": dump_alternatives(verdict.alternatives),
    }


def decisions_of(session: Session, job_id: str) -> Sequence[Decision]:
    query = select(Decision).where(Decision.job_id == job_id).order_by(col(Decision.id))
    return session.exec(query).all()


def record_outcome(session: Session, job_id: str, outcome: Json) -> None:
    """Give the job's last decision what really came of it."""
    query = select(Decision).where(Decision.job_id == job_id).order_by(col(Decision.id).desc())
    last = session.exec(query).first()
    if last is not None:
        last.outcome = outcome
        session.add(last)
