"""Money, time and size: the few conversions that everything shares."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

SECONDS_PER_HOUR = 3600
GIB = 1024**3

#: Charges are stored to a billionth of the currency unit and rounded only when printed.
MONEY_QUANTUM = Decimal("0.000000001")


@dataclass(frozen=True, slots=True)
class Money:
    """An exact amount in one currency (ISO 4217 code)."""

    amount: Decimal
    currency: str

    def __add__(self, other: Money) -> Money:
        if other.currency != self.currency:
            raise ValueError(f"cannot add {other.currency} to {self.currency}")
        return Money(self.amount + other.amount, self.currency)

    def __str__(self) -> str:
        return f"{self.amount:.2f} {self.currency}"


@dataclass(frozen=True, slots=True)
class Rate:
    """A frozen price: what one unit costs for one hour, and where that figure comes from.

    `unit` is what is multiplied by time: ``card`` (on-prem), ``cpu`` (on-prem lease without
    cards) or ``instance`` (rented).
    """

    per_hour: Decimal
    currency: str
    unit: str
    source: str
    as_of: datetime


def cost_between(rate: Rate, units: int, start_us: int, end_us: int) -> Decimal:
    """The charge for `units` over [start, end) microseconds since the lease began.

    Each charge is the difference of two rounded running totals, so that any partition of a
    lease into lines sums exactly to the rounded total of the whole.
    """
    return _running_total(rate, units, end_us) - _running_total(rate, units, start_us)


def _running_total(rate: Rate, units: int, upto_us: int) -> Decimal:
    exact = rate.per_hour * units * upto_us / (SECONDS_PER_HOUR * 1_000_000)
    return exact.quantize(MONEY_QUANTUM)


def microseconds(start: datetime, end: datetime) -> int:
    """Whole microseconds from `start` to `end` (both timezone-aware)."""
    delta = end - start
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def iso(moment: datetime) -> str:
    """ISO-8601 in UTC with a trailing Z."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock_time(moment: datetime) -> str:
    """For sentences: ``Dec 01 14:05 UTC``. The API carries the exact moment beside it."""
    return moment.astimezone(UTC).strftime("%b %d %H:%M UTC")
