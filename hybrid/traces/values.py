"""Cells of trace files as numbers; each raises `RowError` with the reason a row is dropped for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, tzinfo

from hybrid.traces.record import RowError

_UNKNOWN = frozenset({"", "unknown", "none", "n/a", "nan", "null", "invalid"})
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.(\d+))?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)(?:i?B)?([nc]?)", re.IGNORECASE)

Row = Mapping[str, str]


def known(text: str | None) -> str | None:
    """The stripped text, or None where the file says that it does not know."""
    if text is None:
        return None
    text = text.strip()
    return None if text.lower() in _UNKNOWN else text


def number(row: Row, column: str, default: float | None = None) -> float:
    text = known(row.get(column))
    if text is None:
        if default is not None:
            return default
        raise RowError(f"{column} is missing")
    try:
        value = float(text)
    except ValueError:
        raise RowError(f"{column} is not a number") from None
    if not math.isfinite(value):
        raise RowError(f"{column} is not a number")
    return value


def optional(row: Row, column: str) -> float | None:
    """A number > 0, or None: traces write 0 or -1 for *not given*."""
    if known(row.get(column)) is None:
        return None
    value = number(row, column)
    return value if value > 0 else None


def whole(row: Row, column: str, default: int | None = None) -> int:
    value = number(row, column, default)
    if value < 0:
        raise RowError(f"{column} is negative")
    return math.ceil(value)


def moment(text: str, zone: tzinfo) -> tuple[float, bool]:
    """Seconds since the epoch of an ISO-8601 text (or a number of seconds), and whether the
    text named its own zone."""
    try:
        return float(text), True
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise RowError("a moment is neither ISO-8601 nor seconds") from None
    named = at.tzinfo is not None
    return (at if named else at.replace(tzinfo=zone)).timestamp(), named


def clock_seconds(text: str) -> float:
    """Slurm's ``[DD-[HH:]]MM:SS`` in seconds; ``UNLIMITED`` and the like raise."""
    found = _CLOCK.fullmatch(text.strip())
    if found is None:
        raise RowError("a duration is not [DD-[HH:]]MM:SS")
    days, hours, minutes, seconds, part = found.groups()
    whole_seconds = (int(days or 0) * 24 + int(hours or 0)) * 3600 + int(minutes) * 60
    return whole_seconds + int(seconds) + (float(f"0.{part}") if part else 0.0)


def size_bytes(text: str) -> int:
    """``64G``, ``4000M``, ``1T`` in bytes (powers of 1024, as Slurm counts)."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise RowError("a size is not a number with K, M, G or T")
    return int(float(found[1]) * _SIZES[found[2].upper()])
