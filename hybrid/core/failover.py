"""Which offers are left alone for a while, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from hybrid.core.policy import Policy
from hybrid.core.units import clock_time


@dataclass(frozen=True, slots=True)
class Miss:
    """A refusal that the provider gave for an offer."""

    offer_key: str
    reason: str
    until: datetime


@dataclass(frozen=True, slots=True)
class BootOutcome:
    """A machine that was rented: did it ever join?"""

    offer_key: str
    at: datetime
    joined: bool
    reason: str = ""


def rest_until(kind: str, now: datetime, policy: Policy, jitter: float) -> datetime:
    """Until when an offer rests after a refusal of this kind (a `ports.ErrorKind` value).

    `jitter` in [0, 1) is drawn by the caller; it spreads retries over `failover.jitter`.
    """
    rules = policy.failover
    seconds = {
        "capacity": rules.capacity_rest_seconds,
        "quota": rules.quota_rest_seconds,
    }.get(kind, rules.error_rest_seconds)
    return now + timedelta(seconds=seconds * (1 + rules.jitter * jitter))


def unavailable_offers(
    misses: Iterable[Miss], boots: Iterable[BootOutcome], now: datetime, policy: Policy
) -> Mapping[str, str]:
    """Offer key → why it is not tried now: a recent refusal, or boots that never joined."""
    found = {
        miss.offer_key: f"{miss.reason}; not tried again before {clock_time(miss.until)}"
        for miss in misses
        if miss.until > now
    }
    for key, outcomes in _by_key(boots).items():
        failures = _failures_in_a_row(outcomes)
        if len(failures) < policy.failover.breaker_failures:
            continue
        opens_again = failures[0].at + timedelta(seconds=policy.failover.breaker_open_seconds)
        if opens_again > now:
            found[key] = (
                f"breaker open until {clock_time(opens_again)}: its last {len(failures)} boots "
                f"never joined ({failures[0].reason})"
            )
    return found


def _by_key(boots: Iterable[BootOutcome]) -> Mapping[str, list[BootOutcome]]:
    grouped: dict[str, list[BootOutcome]] = defaultdict(list)
    for boot in sorted(boots, key=lambda b: b.at, reverse=True):
        grouped[boot.offer_key].append(boot)
    return grouped


def _failures_in_a_row(newest_first: list[BootOutcome]) -> list[BootOutcome]:
    failures = []
    for outcome in newest_first:
        if outcome.joined:
            break
        failures.append(outcome)
    return failures
