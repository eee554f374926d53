"""What people and failures have said about nodes, cards and offers; meta facts; policies."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlmodel import Session, col, select

from hybrid.store.tables import CardMark, LaunchMiss, Meta, NodeMark, PolicyApplied


def node_marks(session: Session) -> Mapping[str, NodeMark]:
    return {mark.node_id: mark for mark in session.exec(select(NodeMark))}


def set_node_mark(session: Session, mark: NodeMark) -> None:
    """Cordon or drain a node; the newest word stands."""
    session.merge(mark)
    session.info["steps"].append("node:marked")


def clear_node_mark(session: Session, node_id: str) -> bool:
    mark = session.get(NodeMark, node_id)
    if mark is None:
        return False
    session.delete(mark)
    session.info["steps"].append("node:unmarked")
    return True


def card_marks(session: Session) -> Mapping[str, CardMark]:
    return {mark.uuid: mark for mark in session.exec(select(CardMark))}


def quarantine(session: Session, mark: CardMark) -> None:
    session.merge(mark)
    session.info["steps"].append("card:quarantined")


def heal(session: Session, uuid: str) -> bool:
    """Lift a quarantine; False when there was none."""
    mark = session.get(CardMark, uuid)
    if mark is None:
        return False
    session.delete(mark)
    session.info["steps"].append("card:healed")
    return True


def record_miss(session: Session, miss: LaunchMiss) -> None:
    """Remember that an offer just failed."""
    session.merge(miss)
    session.info["steps"].append("offer:missed")


def misses_at(session: Session, now: datetime) -> Sequence[LaunchMiss]:
    """The negative cache entries that still hold at `now`."""
    query = select(LaunchMiss).where(col(LaunchMiss.until) > now).order_by(LaunchMiss.offer_key)
    return session.exec(query).all()


def meta(session: Session, key: str, default: str) -> str:
    """The stored fact, written as `default` the first time it is asked for."""
    row = session.get(Meta, key)
    if row is None:
        row = Meta(key=key, value=default)
        session.add(row)
    return row.value


def orchestrator_id(session: Session) -> str:
    """This installation's own id: what every rented thing is tagged with. Made once, for ever."""
    return meta(session, "orchestrator_id", f"hybrid-{os.urandom(6).hex()}")


def last_policy(session: Session) -> PolicyApplied | None:
    query = select(PolicyApplied).order_by(col(PolicyApplied.id).desc())
    return session.exec(query).first()


def record_policy(session: Session, applied: PolicyApplied) -> None:
    session.add(applied)
    session.info["steps"].append("policy:applied")
