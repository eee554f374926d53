"""API tokens: shown once, stored as a hash, revoked for good."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime

from sqlmodel import Session, col, select

from hybrid.store.ids import new_id
from hybrid.store.tables import ApiToken

#: What each role may do beyond the one before it.
ROLES = {
    "user": "submit jobs; see the queue; act on own jobs",
    "operator": "act on every job, cordon and drain nodes, release leases",
    "admin": "all of that, tokens and policy",
}


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def create_token(
    session: Session,
    user: str,
    role: str,
    now: datetime,
    note: str = "",
    expires_at: datetime | None = None,
) -> tuple[ApiToken, str]:
    """A new token and its secret, which is not kept. An unknown role raises `ValueError`."""
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}; one of: {', '.join(ROLES)}")
    secret = f"hyb_{secrets.token_urlsafe(32)}"
    token = ApiToken(
        id=new_id("token", now),
        sha256=hash_of(secret),
        user=user,
        role=role,
        note=note,
        created_at=now,
        expires_at=expires_at,
    )
    session.add(token)
    session.info["steps"].append("token:created")
    return token, secret


def find_token(session: Session, secret: str, now: datetime) -> ApiToken | None:
    """The live token with this secret, or None."""
    token = session.exec(select(ApiToken).where(ApiToken.sha256 == hash_of(secret))).first()
    if token is None or token.revoked_at is not None:
        return None
    if token.expires_at is not None and token.expires_at <= now:
        return None
    return token


def revoke_token(session: Session, token_id: str, now: datetime) -> bool:
    token = session.get(ApiToken, token_id)
    if token is None or token.revoked_at is not None:
        return False
    token.revoked_at = now
    session.add(token)
    session.info["steps"].append("token:revoked")
    return True


def tokens(session: Session) -> Sequence[ApiToken]:
    return session.exec(select(ApiToken).order_by(col(ApiToken.id))).all()
