"""The price that is frozen into a lease when it is requested."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from hybrid.core.model import Offer
from hybrid.core.place import model_matches
from hybrid.core.policy import Policy
from hybrid.core.units import Rate


def pool_rate(card_models: frozenset[str], policy: Policy, now: datetime) -> Rate:
    """Per card of the dearest model in the lease (a gang has one), else per CPU."""
    rates = policy.rates
    if not card_models:
        return Rate(rates.cpu_per_hour, rates.currency, "cpu", rates.source, now)
    per_hour = max(_card_rate(model, policy) for model in card_models)
    return Rate(per_hour, rates.currency, "card", rates.source, now)


def _card_rate(model: str, policy: Policy) -> Decimal:
    matching = [rate for name, rate in policy.rates.cards.items() if model_matches(name, model)]
    return max(matching, default=policy.rates.card_per_hour)


def offer_rate(offer: Offer) -> Rate:
    """The offer's own price. One without a price is never rented, so its absence is a fault."""
    if offer.price_per_hour is None:
        raise ValueError(f"offer {offer.key} has no price and cannot be rented")
    return Rate(
        offer.price_per_hour, offer.currency, "instance", offer.price_source, offer.price_as_of
    )
