"""What must hold for every snapshot."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.core.lifecycle import LeaseState
from hybrid.core.model import (
    Burst,
    LeaseKind,
    LeaseView,
    Node,
    Plan,
    Snapshot,
    StartOnPool,
    StartOnWarm,
    WaitingJob,
)
from hybrid.core.plan import plan
from hybrid.core.policy import Policy
from hybrid.testing.builders import at, job, lease, node, offer, snapshot
from hybrid_policies.threshold import BurstNow

jobs = st.builds(
    job,
    job_id=st.uuids().map(str),
    gpus=st.integers(0, 5),
    nodes=st.integers(1, 2),
    waited=st.floats(0, 5000),
    user=st.sampled_from(["ada", "bob"]),
    model=st.sampled_from([None, "A100", "T4"]),
    priority=st.integers(-1, 1),
    max_runtime_seconds=st.sampled_from([None, 100.0, 5000.0]),
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes, leases = [], []
    for number in range(draw(st.integers(0, 4))):
        name, size = f"n{number}", draw(st.integers(0, 4))
        held = draw(st.sets(st.integers(0, max(0, size - 1)), max_size=size))
        nodes.append(node(name, size, draw(st.sampled_from(["A100", "T4"])), held=held, cpus=8.0))
        leases += [
            lease(
                f"lease-{name}-{card}",
                on=name,
                cards=(card,),
                cpus=8.0 / size,
                owner=draw(st.sampled_from(["ada", "bob"])),
                ends_in=draw(st.sampled_from([None, 50.0, 900.0])),
                idle_for=draw(st.sampled_from([None, 1.0, 100.0])),
            )
            for card in sorted(held)
        ]
    waiting = draw(st.lists(jobs, max_size=12, unique_by=lambda j: j.id))
    offers = [offer(gpus=gpus, price=str(gpus)) for gpus in (1, 4)]
    return snapshot(waiting, nodes, leases, offers if draw(st.booleans()) else [])


def round_of(seen: Snapshot) -> Plan:
    return plan(seen, Policy(), BurstNow())


@given(snapshots())
@settings(max_examples=150, deadline=None)
def test_every_job_has_one_verdict_and_at_most_one_action(seen: Snapshot) -> None:
    made = round_of(seen)
    assert sorted(v.job_id for v in made.verdicts) == sorted(j.id for j in seen.jobs)
    acted = Counter(
        a.job_id for a in made.actions if isinstance(a, StartOnPool | StartOnWarm | Burst)
    )
    assert all(count == 1 for count in acted.values())
    assert all(v.reason for v in made.verdicts)


@given(snapshots())
@settings(max_examples=150, deadline=None)
def test_nothing_is_given_twice_nor_what_is_not_free(seen: Snapshot) -> None:
    free = {c.uuid for n in seen.nodes if n.cordoned is None for c in n.cards if c.free}
    cpus = {n.id: n.free_cpus for n in seen.nodes}
    warm = {le.id for le in seen.leases if le.state is LeaseState.READY and le.job_id is None}
    for action in round_of(seen).actions:
        if isinstance(action, StartOnPool):
            gang = action.gang
            assert len(action.shares) == gang.nodes
            assert len({share.node for share in action.shares}) == gang.nodes
            for share in action.shares:
                assert len(share.cards) == gang.gpus_per_node
                assert set(share.cards) <= free
                free -= set(share.cards)
                cpus[share.node] -= share.cpus
                assert cpus[share.node] > -1e-3
        elif isinstance(action, StartOnWarm):
            assert action.lease_id in warm
            warm.remove(action.lease_id)


@given(snapshots(), st.randoms())
@settings(max_examples=100, deadline=None)
def test_the_order_of_the_snapshot_means_nothing(seen: Snapshot, rng: random.Random) -> None:
    shuffled = replace(
        seen,
        jobs=tuple(rng.sample(seen.jobs, len(seen.jobs))),
        leases=tuple(rng.sample(seen.leases, len(seen.leases))),
        offers=tuple(rng.sample(seen.offers, len(seen.offers))),
    )
    assert set(map(repr, round_of(seen).actions)) == set(map(repr, round_of(shuffled).actions))


@given(snapshots())
@settings(max_examples=100, deadline=None)
def test_planning_again_after_acting_starts_nothing_twice(seen: Snapshot) -> None:
    made = round_of(seen)
    after = applied(seen, made)
    again = round_of(after)
    first = {a.job_id for a in made.actions if isinstance(a, StartOnPool | StartOnWarm | Burst)}
    second = {a.job_id for a in again.actions if isinstance(a, StartOnPool | StartOnWarm | Burst)}
    assert first.isdisjoint(second)
    started = {
        c for a in made.actions if isinstance(a, StartOnPool) for s in a.shares for c in s.cards
    }
    restarted = {
        c for a in again.actions if isinstance(a, StartOnPool) for s in a.shares for c in s.cards
    }
    assert started.isdisjoint(restarted)


def applied(seen: Snapshot, made: Plan) -> Snapshot:
    """The world right after the intents of a plan were written."""
    leases: dict[str, LeaseView] = {le.id: le for le in seen.leases}
    gone: set[str] = set()
    holder: dict[str, str] = {}
    for action in made.actions:
        if isinstance(action, StartOnPool):
            new = f"new-{action.job_id}"
            leases[new] = LeaseView(
                new, LeaseKind.POOL, LeaseState.REQUESTED, "x", "", action.gang, action.shares,
                job_id=action.job_id,
            )  # fmt: skip
            holder.update({c: new for s in action.shares for c in s.cards})
            gone.add(action.job_id)
        elif isinstance(action, StartOnWarm):
            leases[action.lease_id] = replace(
                leases[action.lease_id], state=LeaseState.BUSY, job_id=action.job_id
            )
            gone.add(action.job_id)
        elif isinstance(action, Burst):
            gone.add(action.job_id)
    taken = {s.node: s.cpus for a in made.actions if isinstance(a, StartOnPool) for s in a.shares}

    def now_held(found: Node) -> Node:
        cards = tuple(replace(c, held_by=holder.get(c.uuid, c.held_by)) for c in found.cards)
        return replace(found, cards=cards, free_cpus=found.free_cpus - taken.get(found.id, 0))

    waiting: list[WaitingJob] = [j for j in seen.jobs if j.id not in gone]
    return replace(
        seen,
        jobs=tuple(waiting),
        leases=tuple(leases.values()),
        nodes=tuple(map(now_held, seen.nodes)),
    )


@given(snapshots())
@settings(max_examples=150, deadline=None)
def test_backfill_never_delays_a_promised_start(seen: Snapshot) -> None:
    """Once everything that ends in time has ended, the promised gang fits."""
    made = round_of(seen)
    first = next(
        (v for v in made.verdicts if v.expected_start is not None and "expected start" in v.reason),
        None,
    )
    if first is None or first.expected_start is None:
        return
    promised = next(j for j in seen.jobs if j.id == first.job_id)
    held = {
        card: by_when
        for le in seen.leases
        for share in le.shares
        for card in share.cards
        if (by_when := le.expected_end) is None or by_when > first.expected_start
    }
    for action in made.actions:
        if isinstance(action, StartOnPool):
            limit = next(
                j for j in seen.jobs if j.id == action.job_id
            ).requirements.max_runtime_seconds
            if limit is None or at(limit) > first.expected_start:
                held.update({c: None for s in action.shares for c in s.cards})
    gang = promised.requirements.gang
    if gang.gpus_per_node == 0:
        return
    able = Counter(
        n.cards[0].model
        for n in seen.nodes
        if n.cards
        and sum(c.uuid not in held for c in n.cards) >= gang.gpus_per_node
        and (gang.gpu_model in (None, n.cards[0].model))
    )
    assert any(count >= gang.nodes for count in able.values())
