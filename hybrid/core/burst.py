"""Waiting against renting: which offers are eligible, what they would cost, what the strategy
says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Protocol

from hybrid.core.feasible import fits_offer
from hybrid.core.model import (
    Alternative,
    CloudUse,
    Market,
    MarketChoice,
    Offer,
    Place,
    WaitingJob,
)
from hybrid.core.policy import Policy
from hybrid.core.units import SECONDS_PER_HOUR, Money

_MARKETS: Mapping[MarketChoice, frozenset[Market]] = {
    MarketChoice.ON_DEMAND: frozenset({Market.ON_DEMAND}),
    MarketChoice.SPOT_OK: frozenset({Market.ON_DEMAND, Market.SPOT}),
    MarketChoice.SPOT: frozenset({Market.SPOT}),
}


@dataclass(frozen=True, slots=True)
class Question:
    """What a strategy is asked: burst this waiting job now?

    `offer` is the cheapest eligible one, `expected_cost` what the whole run would cost on it,
    `expected_start` when the pool would start it (None: cannot be told).
    """

    now: datetime
    job: WaitingJob
    waited_seconds: float
    offer: Offer
    expected_cost: Money
    expected_start: datetime | None


@dataclass(frozen=True, slots=True)
class Answer:
    """`burst` and a reason in words; `not_before` is when the answer may change by itself."""

    burst: bool
    reason: str
    not_before: datetime | None = None


class Strategy(Protocol):
    """Decides between waiting and renting. Pure: no clock, no randomness, no I/O."""

    def decide(self, question: Question) -> Answer: ...


@dataclass(slots=True)
class Budget:
    """What the caps still allow in this round."""

    use: CloudUse
    policy: Policy

    def objection(self, offer: Offer, cost: Decimal) -> str | None:
        """Why the caps forbid this offer now, or None."""
        caps, price = self.policy.caps, offer.price_per_hour or Decimal(0)
        if self.use.instances + 1 > caps.max_instances:
            return f"caps.max_instances = {caps.max_instances} machines are rented already"
        if self.use.price_per_hour + price > caps.max_price_per_hour:
            return (
                f"{self.use.price_per_hour + price:.2f} {caps.currency}/h would exceed "
                f"caps.max_price_per_hour = {caps.max_price_per_hour}"
            )
        if self.use.spent_today + cost > caps.max_spend_per_day:
            return (
                f"{self.use.spent_today:.2f} {caps.currency} are spent today; with "
                f"{cost:.2f} more, caps.max_spend_per_day = {caps.max_spend_per_day} is exceeded"
            )
        return None

    def spend(self, offer: Offer, cost: Decimal) -> None:
        self.use = CloudUse(
            instances=self.use.instances + 1,
            price_per_hour=self.use.price_per_hour + (offer.price_per_hour or Decimal(0)),
            spent_today=self.use.spent_today + cost,
        )


def expected_runtime(job: WaitingJob, policy: Policy) -> float:
    """Seconds: the user's estimate, else the limit, else what the policy assumes."""
    wishes = job.requirements
    return (
        wishes.runtime_estimate_seconds
        or wishes.max_runtime_seconds
        or policy.burst.expected_runtime_seconds
    )


def expected_cost(job: WaitingJob, offer: Offer, policy: Policy) -> Decimal:
    """Price × (time to ready + expected runtime): boot is paid for too."""
    seconds = Decimal(str(offer.ready_seconds + expected_runtime(job, policy)))
    return (offer.price_per_hour or Decimal(0)) * seconds / SECONDS_PER_HOUR


def why_not(job: WaitingJob, offer: Offer, policy: Policy) -> str | None:
    """Why an offer is not eligible for a job at all, or None. (Gang fit is asked before.)"""
    wishes, caps = job.requirements, policy.caps
    if offer.price_per_hour is None or offer.price_per_hour <= 0:
        return f"its price is unknown ({offer.price_source})"
    if offer.currency != caps.currency:
        return f"its price is in {offer.currency}, the caps are in {caps.currency}"
    if caps.providers and offer.provider not in caps.providers:
        return f"provider {offer.provider} is not among caps.providers"
    if offer.market not in _MARKETS[wishes.market]:
        return f"the job's hybrid.market is {wishes.market}"
    cost = expected_cost(job, offer, policy)
    if wishes.max_cost is not None and cost > wishes.max_cost:
        return f"{cost:.2f} {offer.currency} is above the job's hybrid.max_cost {wishes.max_cost}"
    return None


@dataclass(frozen=True, slots=True)
class Eligible:
    """The offers that a job may be rented, cheapest first, and why the others are out."""

    offers: tuple[Offer, ...]
    refused: tuple[Alternative, ...]


def eligible_offers(
    job: WaitingJob,
    offers: Iterable[Offer],
    unavailable: Mapping[str, str],
    policy: Policy,
    now: datetime,
) -> Eligible:
    """Sorted by expected cost of the whole run, then time to ready, then key."""
    if job.requirements.place is Place.ONPREM:
        return Eligible((), ())
    good, refused = [], []
    for offer in offers:
        if not fits_offer(job.requirements.gang, offer):
            continue
        objection = why_not(job, offer, policy) or unavailable.get(offer.key)
        if objection is None:
            good.append(offer)
        else:
            refused.append(alternative(job, offer, policy, now, objection))
    good.sort(key=lambda o: (expected_cost(job, o, policy), o.ready_seconds, o.key))
    return Eligible(tuple(good), tuple(sorted(refused, key=lambda a: a.what)))


def alternative(
    job: WaitingJob, offer: Offer, policy: Policy, now: datetime, verdict: str
) -> Alternative:
    cost = (
        Money(expected_cost(job, offer, policy), offer.currency) if offer.price_per_hour else None
    )
    return Alternative(
        what=f"rent {offer.instance_type} ({offer.key})",
        expected_start=now + timedelta(seconds=offer.ready_seconds),
        expected_cost=cost,
        verdict=verdict,
    )
