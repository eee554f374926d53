"""Lifecycles, money, feasibility, failover: the small pure rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.core.failover import BootOutcome, Miss, rest_until, unavailable_offers
from hybrid.core.feasible import why_never
from hybrid.core.lifecycle import (
    RAY_STATUS,
    TRANSITIONS,
    AttemptState,
    IllegalTransition,
    JobState,
    LeaseState,
    check_transition,
)
from hybrid.core.model import Gang, Place, Requirements
from hybrid.core.policy import Policy
from hybrid.core.rates import offer_rate, pool_rate
from hybrid.core.units import Money, Rate, cost_between, microseconds
from hybrid.testing.builders import NOW, at, node, offer

POLICY = Policy()


@pytest.mark.parametrize("kind", [JobState, AttemptState, LeaseState])
def test_every_transition_that_is_not_in_the_table_is_refused(kind: type) -> None:
    for current in kind:
        for target in kind:
            if target in TRANSITIONS[kind].get(current, frozenset()):
                check_transition("x", "1", current, target)
            else:
                with pytest.raises(IllegalTransition, match=f"cannot become {target}"):
                    check_transition("x", "1", current, target)


def test_final_states_are_final_and_every_other_state_has_a_way_out() -> None:
    for kind in (JobState, AttemptState):
        for state in kind:
            assert bool(TRANSITIONS[kind].get(state)) is not state.terminal
    assert [s for s in LeaseState if not TRANSITIONS[LeaseState].get(s)] == [LeaseState.RELEASED]


def test_rays_client_is_told_only_words_that_it_knows() -> None:
    known = {"PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"}
    assert set(RAY_STATUS.values()) == known
    assert set(RAY_STATUS) == set(JobState)


@given(
    st.decimals("0.0001", "99", places=4),
    st.integers(1, 64),
    st.lists(st.integers(0, 10**13), min_size=2, max_size=20),
)
def test_any_partition_of_a_lease_sums_to_its_rounded_whole(
    price: Decimal, units: int, cuts: list[int]
) -> None:
    rate = Rate(price, "USD", "card", "test", NOW)
    cuts.sort()
    parts = [cost_between(rate, units, a, b) for a, b in pairwise(cuts)]
    assert sum(parts) == cost_between(rate, units, cuts[0], cuts[-1])


def test_money_of_two_currencies_is_not_added() -> None:
    assert str(Money(Decimal("1.5"), "USD") + Money(Decimal("0.505"), "USD")) == "2.00 USD"
    with pytest.raises(ValueError, match="cannot add EUR to USD"):
        Money(Decimal(1), "USD") + Money(Decimal(1), "EUR")


def test_microseconds_do_not_care_for_zones() -> None:
    elsewhere = NOW.astimezone(datetime.now().astimezone().tzinfo)
    assert microseconds(NOW, elsewhere + timedelta(seconds=1.5)) == 1_500_000
    assert elsewhere.astimezone(UTC) == NOW


def test_a_pool_lease_costs_what_its_dearest_card_costs_and_never_nothing() -> None:
    assert pool_rate(frozenset({"NVIDIA A100-SXM4"}), POLICY, NOW).per_hour == Decimal("1.20")
    assert pool_rate(frozenset({"A10"}), POLICY, NOW).per_hour == Decimal("0.45")
    unknown = pool_rate(frozenset({"X9000"}), POLICY, NOW)
    assert unknown.per_hour == POLICY.rates.card_per_hour > 0
    assert pool_rate(frozenset(), POLICY, NOW).unit == "cpu"
    with pytest.raises(ValueError, match="has no price"):
        offer_rate(offer(price=None))


# --------------------------------------------------------------------------- feasibility


def ask(gang: Gang, place: Place = Place.ANY) -> str | None:
    nodes = [node("n1", 4, "A100", held=[0, 1, 2, 3]), node("n2", 2, "T4", cordoned="x")]
    return why_never(Requirements(gang, place=place), nodes, [offer(gpus=8, model="H100")])


@pytest.mark.parametrize(
    "gang",
    [
        Gang(gpus_per_node=4),
        Gang(gpus_per_node=2, gpu_model="T4"),
        Gang(gpus_per_node=8),
        Gang(cpus=16.0),
    ],
)
def test_busy_and_cordoned_places_count_since_they_come_back(gang: Gang) -> None:
    assert ask(gang) is None


@pytest.mark.parametrize(
    ("gang", "place"),
    [
        (Gang(gpus_per_node=9), Place.ANY),
        (Gang(gpus_per_node=5), Place.ONPREM),
        (Gang(gpus_per_node=4, nodes=2), Place.ANY),
        (Gang(gpus_per_node=1, gpu_model="B200"), Place.ANY),
        (Gang(gpus_per_node=1, gpu_memory_bytes=10**12), Place.ANY),
        (Gang(cpus=17.0), Place.ANY),
    ],
)
def test_what_can_never_fit_is_refused_with_the_largest_that_does(gang: Gang, place: Place) -> None:
    sentence = ask(gang, place)
    assert sentence is not None
    assert "4 A100" in sentence
    assert "2 T4" in sentence
    assert ("8 H100" in sentence) is (place is Place.ANY)


# --------------------------------------------------------------------------- failover


def test_rests_differ_by_kind_and_are_spread_by_the_jitter() -> None:
    rules = POLICY.failover
    assert rest_until("capacity", NOW, POLICY, 0.0) == at(rules.capacity_rest_seconds)
    assert rest_until("quota", NOW, POLICY, 0.0) == at(rules.quota_rest_seconds)
    assert rest_until("auth", NOW, POLICY, 0.0) == at(rules.error_rest_seconds)
    assert rest_until("capacity", NOW, POLICY, 0.999) > at(rules.capacity_rest_seconds * 1.2)


def test_a_miss_holds_until_its_time() -> None:
    misses = [Miss("k1", "no capacity", at(1)), Miss("k2", "old", at(0))]
    found = unavailable_offers(misses, [], NOW, POLICY)
    assert set(found) == {"k1"}
    assert "no capacity" in found["k1"]


def test_the_breaker_counts_boots_that_never_joined_and_opens_for_a_time() -> None:
    """parallelcluster PR#702: nodes that hang in bootstrap loop for ever."""
    never = [BootOutcome("k", at(-300 + i), False, "hung") for i in range(3)]
    assert "breaker open" in unavailable_offers([], never, NOW, POLICY)["k"]
    assert unavailable_offers([], never[:2], NOW, POLICY) == {}
    later = NOW + timedelta(seconds=POLICY.failover.breaker_open_seconds)
    assert unavailable_offers([], never, later, POLICY) == {}
    healed = [*never, BootOutcome("k", at(-1), True)]
    assert unavailable_offers([], healed, NOW, POLICY) == {}
