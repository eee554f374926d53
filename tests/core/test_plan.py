"""The planner's round: what starts, what waits and why, what is rented, what is let go."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from hybrid.core.lifecycle import LeaseState
from hybrid.core.model import (
    Burst,
    Choice,
    CloudUse,
    Market,
    MarketChoice,
    Place,
    Plan,
    ReleaseLease,
    Snapshot,
    StartOnPool,
    StartOnWarm,
    Verdict,
)
from hybrid.core.plan import plan
from hybrid.core.policy import BurstPolicy, CapsPolicy, LeasePolicy, Policy
from hybrid.testing.builders import NOW, at, job, lease, node, offer, snapshot
from hybrid_policies.threshold import BurstNow, ConstantWait, Never

POLICY = Policy()
PATIENT = Never()


def decide(seen: Snapshot, strategy: object = PATIENT, policy: Policy = POLICY) -> Plan:
    return plan(seen, policy, strategy)  # type: ignore[arg-type]


def verdict(made: Plan, job_id: str = "job-1") -> Verdict:
    return next(v for v in made.verdicts if v.job_id == job_id)


def started(made: Plan) -> list[str]:
    return [a.job_id for a in made.actions if isinstance(a, StartOnPool)]


# --------------------------------------------------------------------------- the pool


def test_a_job_that_fits_starts_now_on_the_fullest_node_that_holds_it() -> None:
    made = decide(snapshot([job(gpus=2)], [node("n1", 4), node("n2", 4, held=[0, 1])]))
    assert [a.shares[0].node for a in made.actions if isinstance(a, StartOnPool)] == ["n2"]
    assert verdict(made).choice is Choice.START
    assert verdict(made).expected_start == NOW


def test_small_jobs_spare_the_cards_with_much_memory() -> None:
    nodes = [node("big", 4, "A100", 80), node("small", 4, "T4", 16)]
    made = decide(snapshot([job(gpus=1)], nodes))
    assert isinstance(made.actions[0], StartOnPool)
    assert made.actions[0].shares[0].node == "small"


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [("A100", True), ("a100", True), ("NVIDIA A100", True), ("A10", False), ("100", False)],
)
def test_card_models_match_as_whole_words_without_case(wanted: str, fits: bool) -> None:
    nodes = [node("n1", 2, "NVIDIA A100-SXM4-80GB")]
    made = decide(snapshot([job(model=wanted)], nodes))
    assert bool(started(made)) is fits


def test_a_gang_over_two_nodes_is_all_or_nothing_and_of_one_model() -> None:
    mixed = [node("n1", 2, "A100"), node("n2", 2, "V100")]
    assert started(decide(snapshot([job(gpus=2, nodes=2)], mixed))) == []
    same = [node("n1", 2), node("n2", 2)]
    made = decide(snapshot([job(gpus=2, nodes=2)], same))
    assert isinstance(made.actions[0], StartOnPool)
    assert {share.node for share in made.actions[0].shares} == {"n1", "n2"}


def test_cordoned_nodes_and_unusable_cards_are_never_given_out() -> None:
    sick = node("n2", 1)
    sick = replace(sick, cards=(replace(sick.cards[0], unusable="quarantined: ECC"),))
    made = decide(snapshot([job()], [node("n1", 4, cordoned="fan"), sick]))
    assert made.actions == ()
    assert "A100" not in verdict(made).reason or verdict(made).choice is Choice.WAIT


def test_cards_bring_their_share_of_the_cpus_so_neighbours_never_starve() -> None:
    jobs = [job(f"job-{i}", waited=600 - i) for i in range(4)]
    made = decide(snapshot(jobs, [node("n1", 4, cpus=2.0)]))
    assert len(started(made)) == 4
    cpus = [a.shares[0].cpus for a in made.actions if isinstance(a, StartOnPool)]
    assert cpus == [0.5] * 4


def test_fifo_within_priority_and_a_requeued_job_keeps_its_place() -> None:
    late = job("late", waited=10, priority=5)
    early, retried = job("early", waited=300), replace(job("retried", waited=500), queued_at=at(-1))
    made = decide(snapshot([late, early, retried], [node("n1", 2)]))
    assert started(made) == ["late", "retried"]


def test_only_the_first_blocked_job_is_promised_a_start_and_backfill_cannot_delay_it() -> None:
    running = lease(cards=(0, 1, 2), ends_in=1000)
    nodes = [node("n1", 4, held=[0, 1, 2])]
    big = job("big", gpus=4, waited=900)
    short = job("short", gpus=1, waited=800, max_runtime_seconds=900)
    long = job("long", gpus=1, waited=700, max_runtime_seconds=1100)
    unknown = job("unknown", gpus=1, waited=600)
    made = decide(snapshot([big, short, long, unknown], nodes, [running]))
    assert started(made) == ["short"]
    assert verdict(made, "big").expected_start == at(1000)
    assert "Position 1 of 4" in verdict(made, "big").reason
    assert "starts after big" in verdict(made, "long").reason


def test_where_nobody_can_tell_the_end_the_cards_of_one_node_are_still_held_for_the_big_job() -> (
    None
):
    nodes = [node("n1", 4, held=[0]), node("n2", 4, held=[0, 1, 2])]
    leases = [lease("l1", cards=(0,)), lease("l2", on="n2", cards=(0, 1, 2))]
    jobs = [job("big", gpus=4, waited=900), job("small", gpus=1, waited=100)]
    made = decide(snapshot(jobs, nodes, leases))
    assert [a.shares[0].node for a in made.actions if isinstance(a, StartOnPool)] == ["n2"]
    assert "not predictable" in verdict(made, "big").reason


def test_a_pool_that_cannot_be_asked_starts_nothing_and_says_so() -> None:
    seen = snapshot([job()], [node()], pool_available=False, pool_note="head is away")
    made = decide(seen)
    assert made.actions == ()
    assert "head is away" in verdict(made).reason


# --------------------------------------------------------------------------- warm leases


def test_a_warm_lease_of_the_same_owner_and_shape_is_reused() -> None:
    made = decide(snapshot([job()], [node("n1", 2, held=[0])], [lease(idle_for=5)]))
    assert made.actions == (StartOnWarm("job-1", "lease-1", verdict(made).reason),)


@pytest.mark.parametrize(
    "other",
    [
        job(user="bob"),
        job(gpus=2),
        replace(job(), environment="torch"),
        job(max_runtime_seconds=90_000.0),
        job(place=Place.CLOUD),
    ],
)
def test_a_warm_lease_of_another_owner_shape_environment_or_too_short_a_life_is_not(
    other: object,
) -> None:
    made = decide(snapshot([other], [node("n1", 3, held=[0])], [lease(idle_for=5)]))  # type: ignore[list-item]
    assert not any(isinstance(a, StartOnWarm) for a in made.actions)


def test_a_lease_that_is_being_tidied_up_is_waited_for_once_per_job() -> None:
    busy = lease(job_id=None)
    nodes = [node("n1", 2, held=[0])]
    made = decide(snapshot([job("a", waited=9), job("b", waited=8)], nodes, [busy]))
    assert "tidied up" in verdict(made, "a").reason
    assert started(made) == ["b"]
    serving = lease(job_id="other")
    assert started(decide(snapshot([job()], nodes, [serving]))) == ["job-1"]
    cold = Policy(leases=LeasePolicy(warm_seconds=0))
    assert started(decide(snapshot([job()], nodes, [busy]), PATIENT, cold)) == ["job-1"]


def test_warm_leases_go_after_their_time_or_when_their_cards_are_needed() -> None:
    idle, fresh = lease("idle", idle_for=61), lease("fresh", on="n2", idle_for=5)
    nodes = [node("n1", 1, held=[0]), node("n2", 1, held=[0])]
    made = decide(snapshot([], nodes, [idle, fresh]))
    assert [a.lease_id for a in made.actions if isinstance(a, ReleaseLease)] == ["idle"]
    nodes = [node("n2", 1, held=[0])]
    made = decide(snapshot([job(user="bob")], nodes, [fresh]))
    assert [a.lease_id for a in made.actions if isinstance(a, ReleaseLease)] == ["fresh"]


def test_only_as_many_warm_leases_go_as_are_needed() -> None:
    nodes = [node("n1", 2, held=[0, 1])]
    leases = [lease("a", cards=(0,), idle_for=9), lease("b", cards=(1,), idle_for=5)]
    made = decide(snapshot([job(user="bob")], nodes, leases))
    assert [a.lease_id for a in made.actions if isinstance(a, ReleaseLease)] == ["a"]


def test_a_drained_node_lets_its_warm_leases_go() -> None:
    nodes = [node("n1", 1, held=[0], cordoned="kernel")]
    made = decide(snapshot([job()], nodes, [lease(idle_for=1)]))
    assert isinstance(made.actions[0], ReleaseLease)
    assert not any(isinstance(a, StartOnWarm) for a in made.actions)


# --------------------------------------------------------------------------- bursting

FULL = node("n1", 1, held=[0])


def bursts(made: Plan) -> list[str]:
    return [a.offer.key for a in made.actions if isinstance(a, Burst)]


def test_constant_wait_rents_after_its_time_and_not_before() -> None:
    offers = [offer()]
    early = decide(snapshot([job(waited=59)], [FULL], [], offers), ConstantWait(60))
    assert bursts(early) == []
    assert "waits up to 60 s" in verdict(early).reason
    late = decide(snapshot([job(waited=60)], [FULL], [], offers), ConstantWait(60))
    assert bursts(late) == ["cloud/a/big.1/on-demand"]
    assert verdict(late).expected_cost is not None


def test_never_rents_nothing_but_what_the_job_itself_asks_for() -> None:
    offers = [offer()]
    assert bursts(decide(snapshot([job(waited=1e6)], [FULL], [], offers))) == []
    made = decide(snapshot([job(waited=0, place=Place.CLOUD)], [FULL], [], offers))
    assert len(bursts(made)) == 1


def test_jobs_that_the_pool_could_take_never_burst_not_even_256_of_them() -> None:
    """ray#46588: 256 tasks on an idle 256-CPU cluster still burst."""
    jobs = [job(f"job-{i:03}", waited=600 + i) for i in range(256)]
    nodes = [node(f"n{i:02}", 8) for i in range(32)]
    made = decide(snapshot(jobs, nodes, [], [offer()]), BurstNow())
    assert len(started(made)) == 256
    assert bursts(made) == []


def test_a_job_just_queued_settles_first() -> None:
    made = decide(snapshot([job(waited=2)], [FULL], [], [offer()]), BurstNow())
    assert bursts(made) == []
    assert "settles" in verdict(made).reason


def test_the_cheapest_run_wins_not_the_cheapest_hour() -> None:
    slow = offer("slow", price="2.90", ready=3600)
    quick = offer("quick", price="3.00", ready=60)
    wanted = job(runtime_estimate_seconds=600.0)
    made = decide(snapshot([wanted], [FULL], [], [slow, quick]), BurstNow())
    assert bursts(made) == [quick.key]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (offer(price=None), "unknown"),
        (offer(price="0"), "unknown"),
        (offer(currency="EUR"), "EUR"),
        (offer(market=Market.SPOT), "hybrid.market"),
    ],
)
def test_an_offer_without_price_in_other_money_or_market_is_out_and_says_why(
    bad: object, why: str
) -> None:
    made = decide(snapshot([job()], [FULL], [], [bad]), BurstNow())  # type: ignore[list-item]
    assert bursts(made) == []
    assert why in verdict(made).alternatives[-1].verdict


def test_spot_is_taken_where_the_job_allows_it() -> None:
    offers = [offer(), offer(price="1.00", market=Market.SPOT)]
    wanted = job(market=MarketChoice.SPOT_OK)
    assert bursts(decide(snapshot([wanted], [FULL], [], offers), BurstNow())) == [offers[1].key]


def test_an_offer_that_just_failed_rests_and_the_next_is_tried() -> None:
    offers = [offer("a", price="1.00"), offer("b", price="2.00")]
    seen = snapshot([job()], [FULL], [], offers, unavailable={offers[0].key: "no capacity"})
    assert bursts(decide(seen, BurstNow())) == [offers[1].key]


def test_max_cost_of_the_job_and_caps_of_the_policy_hold() -> None:
    costly = job(max_cost=Decimal("1.00"), runtime_estimate_seconds=3600.0)
    assert bursts(decide(snapshot([costly], [FULL], [], [offer()]), BurstNow())) == []
    jobs = [job(f"job-{i}", waited=900 - i) for i in range(5)]
    two = Policy(caps=CapsPolicy(max_instances=2))
    assert len(bursts(decide(snapshot(jobs, [FULL], [], [offer()]), BurstNow(), two))) == 2
    used = CloudUse(instances=2)
    seen = snapshot(jobs, [FULL], [], [offer()], cloud_use=used)
    made = decide(seen, BurstNow(), two)
    assert bursts(made) == []
    assert "caps.max_instances" in verdict(made, "job-0").reason
    hourly = Policy(caps=CapsPolicy(max_price_per_hour=Decimal("7")))
    assert len(bursts(decide(snapshot(jobs, [FULL], [], [offer()]), BurstNow(), hourly))) == 2
    daily = Policy(caps=CapsPolicy(max_spend_per_day=Decimal("3.50")))
    assert len(bursts(decide(snapshot(jobs, [FULL], [], [offer()]), BurstNow(), daily))) == 1


def test_onprem_jobs_never_burst_and_gangs_over_nodes_are_not_rented() -> None:
    offers = [offer(gpus=8)]
    onprem = job(place=Place.ONPREM)
    assert bursts(decide(snapshot([onprem], [FULL], [], offers), BurstNow())) == []
    gang = job(gpus=1, nodes=2)
    assert bursts(decide(snapshot([gang], [FULL], [], offers), BurstNow())) == []


def test_a_cloud_job_without_an_offer_says_so() -> None:
    made = decide(snapshot([job(place=Place.CLOUD)], [FULL]), BurstNow())
    assert "No installed provider offers" in verdict(made).reason


def test_the_lifetime_of_a_lease_is_hard() -> None:
    old = lease(idle_for=1, life=30)
    made = decide(
        snapshot([], [FULL], [old]), PATIENT, Policy(leases=LeasePolicy(warm_seconds=999))
    )
    assert [a.reason for a in made.actions if isinstance(a, ReleaseLease)] == [
        "its lifetime is over (leases.max_lifetime_seconds)"
    ]


def test_a_busy_or_booting_lease_is_never_released_by_the_planner() -> None:
    for state in (LeaseState.BUSY, LeaseState.BOOTING, LeaseState.REQUESTED):
        made = decide(snapshot([], [FULL], [lease(state=state, life=-1)]))
        assert made.actions == ()


def test_the_assumed_runtime_comes_from_the_policy() -> None:
    short = Policy(burst=BurstPolicy(expected_runtime_seconds=60))
    made = decide(snapshot([job()], [FULL], [], [offer(ready=0)]), BurstNow(), short)
    cost = verdict(made).expected_cost
    assert cost is not None
    assert cost.amount == Decimal("3.00") * 60 / 3600
