"""Sortable ids and the tokens that make outside calls idempotent."""

from __future__ import annotations

import hashlib
import os
from datetime import datetime

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str, now: datetime) -> str:
    """`prefix-` + 48 bits of milliseconds + 50 random bits, in lower-case Crockford base 32.

    Ids made later sort later (to the millisecond).
    """
    value = (int(now.timestamp() * 1000) << 50) | (int.from_bytes(os.urandom(7)) & ((1 << 50) - 1))
    digits = []
    for _ in range(20):
        digits.append(_ALPHABET[value & 31])
        value >>= 5
    return f"{prefix}-{''.join(reversed(digits))}"


def step_token(lease_id: str, step: str) -> str:
    """The idempotency token of one outside call, the same after every restart."""
    return hashlib.sha256(f"{lease_id}/{step}".encode()).hexdigest()[:40]
