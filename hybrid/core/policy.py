"""The policy: every knob, its default, its unit and what it does, in one place.

The TOML schema, `hybrid policy explain` and `policies/README.md` are all made from these fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from hybrid.core.units import Money


def knob(default: Any, doc: str, unit: str = "", minimum: float | None = None) -> Any:
    """A policy field: default, meaning, unit, least allowed value."""
    metadata = {"doc": doc, "unit": unit, "minimum": minimum}
    if isinstance(default, Mapping):
        frozen = MappingProxyType(dict(default))
        return field(default_factory=lambda: frozen, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class BurstPolicy:
    """When waiting ends and renting begins."""

    strategy: str = knob("constant-wait", "Strategy plugin that weighs waiting against renting.")
    params: Mapping[str, float] = knob({}, "Parameters of the strategy, by name.")
    settle_seconds: float = knob(
        5.0,
        "A job queued for less than this is not overflow yet: the pool may be about to take it.",
        "seconds",
        0,
    )
    expected_runtime_seconds: float = knob(
        3600.0, "Runtime assumed for a job that gives no estimate and no limit.", "seconds", 1
    )


@dataclass(frozen=True, slots=True)
class CapsPolicy:
    """What renting may never exceed."""

    max_instances: int = knob(8, "Machines rented at the same time.", "instances", 0)
    max_price_per_hour: Decimal = knob(
        Decimal("50"), "Sum of the prices of everything rented at the same time.", "currency/h", 0
    )
    max_spend_per_day: Decimal = knob(
        Decimal("200"),
        "Spent on renting since midnight UTC, running leases included.",
        "currency",
        0,
    )
    currency: str = knob("USD", "Currency of the caps; offers in another are not eligible.")
    providers: tuple[str, ...] = knob((), "Providers that may be used; empty means all installed.")


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """How long leases live."""

    warm_seconds: float = knob(
        60.0,
        "A lease is kept this long after a job, for the next job of the same owner and shape.",
        "seconds",
        0,
    )
    boot_timeout_seconds: float = knob(
        600.0, "A lease that is not ready by then is given up.", "seconds", 1
    )
    lease_seconds: float = knob(
        300.0,
        "The fence: a node that has not heard from us for this long ends the lease itself.",
        "seconds",
        10,
    )
    max_lifetime_seconds: float = knob(
        7 * 86400.0, "Hard end of every lease, whatever its job does.", "seconds", 60
    )


@dataclass(frozen=True, slots=True)
class JobPolicy:
    """What jobs get and how often they are tried."""

    default_gpus: int = knob(0, "Cards of a job that asks for nothing.", "cards", 0)
    default_cpus: float = knob(1.0, "CPUs of a job that asks for none.", "CPUs", 0.01)
    max_attempts: int = knob(
        3, "Tries of a job whose attempts are lost to the infrastructure.", "attempts", 1
    )
    max_boot_failures: int = knob(
        3, "Leases that may fail to come up before the job is given up.", "leases", 1
    )
    impossible_demand_seconds: float = knob(
        300.0,
        "A job whose own tasks ask for more than its gang is ended after this time.",
        "seconds",
        0,
    )


@dataclass(frozen=True, slots=True)
class FailoverPolicy:
    """How long an offer rests after it failed."""

    capacity_rest_seconds: float = knob(
        120.0, "Rest of an offer that had no capacity.", "seconds", 0
    )
    quota_rest_seconds: float = knob(
        1800.0, "Rest of an offer beyond the account's quota.", "seconds", 0
    )
    error_rest_seconds: float = knob(
        300.0, "Rest of an offer that failed in any other way.", "seconds", 0
    )
    jitter: float = knob(
        0.25, "Rests are lengthened by up to this share, so that retries spread out.", "share", 0
    )
    breaker_failures: int = knob(
        3, "Boots in a row that never joined before an offer's breaker opens.", "boots", 1
    )
    breaker_open_seconds: float = knob(
        1800.0, "How long an open breaker keeps an offer away.", "seconds", 0
    )


@dataclass(frozen=True, slots=True)
class RatePolicy:
    """What the own pool costs. There is no implicit 0: unknown models use `card_per_hour`."""

    currency: str = knob("USD", "Currency of the rates of the own pool.")
    card_per_hour: Decimal = knob(
        Decimal("1.00"), "Rate of a card whose model is not listed in `cards`.", "currency/h", 0
    )
    cpu_per_hour: Decimal = knob(
        Decimal("0.02"), "Rate of a CPU of a lease without cards.", "currency/h", 0
    )
    cards: Mapping[str, Decimal] = knob(
        {
            "T4": Decimal("0.20"),
            "V100": Decimal("0.60"),
            "A10": Decimal("0.45"),
            "L4": Decimal("0.40"),
            "A40": Decimal("0.70"),
            "A100": Decimal("1.20"),
            "H100": Decimal("2.20"),
            "H200": Decimal("2.60"),
        },
        "Rate of a card by model; a name matches a model that contains it as a word.",
        "currency/h",
    )
    source: str = knob(
        "shipped defaults of Hybrid 0.1 (placeholders for your own amortisation; set them)",
        "Where these figures come from; printed on every ledger line.",
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """All tunable rules of one installation."""

    burst: BurstPolicy = BurstPolicy()
    caps: CapsPolicy = CapsPolicy()
    leases: LeasePolicy = LeasePolicy()
    jobs: JobPolicy = JobPolicy()
    failover: FailoverPolicy = FailoverPolicy()
    rates: RatePolicy = RatePolicy()

    def in_currency(self, amount: Decimal) -> Money:
        return Money(amount, self.caps.currency)
