"""One round: `plan(snapshot, policy, strategy) -> Plan`. The only entry point of the core.

Level-triggered and total: it looks at nothing but its arguments, says a verdict for every
waiting job, and gives each at most one action. Any order of the snapshot's parts gives the same
plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hybrid.core.burst import (
    Budget,
    Eligible,
    Question,
    Strategy,
    alternative,
    eligible_offers,
    expected_cost,
    expected_runtime,
)
from hybrid.core.feasible import fits_pool
from hybrid.core.lifecycle import LeaseState
from hybrid.core.model import (
    Action,
    Alternative,
    Burst,
    Choice,
    Gang,
    LeaseKind,
    LeaseView,
    NodeShare,
    Offer,
    Place,
    Plan,
    ReleaseLease,
    Requirements,
    Snapshot,
    StartOnPool,
    StartOnWarm,
    Verdict,
    WaitingJob,
)
from hybrid.core.order import queue_order
from hybrid.core.place import Room
from hybrid.core.policy import Policy
from hybrid.core.timeline import Reservation, reserve
from hybrid.core.units import Money, clock_time

#: A warm lease with less than this left of its life is not given to another job.
MINIMUM_LIFE_SECONDS = 60.0

#: Offers that are out for a reason are shown in a verdict only as examples.
MOST_REFUSED_SHOWN = 3


def plan(snapshot: Snapshot, policy: Policy, strategy: Strategy) -> Plan:
    """Decide on every waiting job and every warm lease of `snapshot`."""
    return _Round(snapshot, policy, strategy).run()


@dataclass(slots=True)
class _Round:
    """The working state of one round; made anew for each."""

    snapshot: Snapshot
    policy: Policy
    strategy: Strategy
    room: Room = field(init=False)
    cordoned: frozenset[str] = field(init=False)
    budget: Budget = field(init=False)
    warm: dict[tuple[str, str, Gang], list[LeaseView]] = field(init=False)
    tidied: dict[tuple[str, str, Gang], list[LeaseView]] = field(init=False)
    reservation: Reservation | None = None
    blocked: set[tuple[Gang, bool]] = field(default_factory=set)
    fitting: dict[Gang, bool] = field(default_factory=dict)
    eligible: dict[Requirements, Eligible] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    released: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.room = Room.of(self.snapshot.nodes)
        self.cordoned = frozenset(n.id for n in self.snapshot.nodes if n.cordoned is not None)
        self.budget = Budget(self.snapshot.cloud_use, self.policy)
        self.warm, self.tidied = defaultdict(list), defaultdict(list)
        for lease in sorted(self.snapshot.leases, key=lambda le: le.id):
            key = (lease.owner, lease.environment, lease.gang)
            if _is_warm(lease):
                self.warm[key].append(lease)
            elif lease.state is LeaseState.BUSY and lease.job_id is None:
                self.tidied[key].append(lease)

    def run(self) -> Plan:
        order = queue_order(self.snapshot.jobs)
        for position, job in enumerate(order, start=1):
            self.verdicts.append(self._decide(job, position, len(order)))
        self._release_idle()
        return Plan(tuple(self.actions), tuple(self.verdicts))

    # ------------------------------------------------------------------ one job

    def _decide(self, job: WaitingJob, position: int, total: int) -> Verdict:
        now = self.snapshot.now
        if job.not_before is not None and job.not_before > now:
            reason = f"not tried again before {clock_time(job.not_before)}"
            return Verdict(job.id, Choice.WAIT, reason, position, job.not_before)
        lease = self._warm_lease(job)
        if lease is not None:
            return self._reuse(job, lease)
        tidied = self._tidied_lease(job)
        if tidied is not None:
            reason = f"your lease {tidied.id} is being tidied up after its last job; starts then"
            return Verdict(job.id, Choice.WAIT, reason, position, now)
        started = self._start_on_pool(job)
        if started is not None:
            return started
        return self._wait_or_burst(job, position, total)

    def _warm_lease(self, job: WaitingJob) -> LeaseView | None:
        key = (job.user, job.environment, job.requirements.gang)
        for lease in self.warm.get(key, ()):
            if lease.id in self.released or not _may_run_in(job, lease):
                continue
            if self._on_cordoned_node(lease):
                continue
            if self._life_left(lease) >= _needed_life(job):
                return lease
        return None

    def _tidied_lease(self, job: WaitingJob) -> LeaseView | None:
        """One that will be warm for this job in a moment: worth waiting for."""
        if self.policy.leases.warm_seconds <= 0:
            return None
        soon = self.tidied.get((job.user, job.environment, job.requirements.gang), [])
        for lease in soon:
            fits = _may_run_in(job, lease) and not self._on_cordoned_node(lease)
            if fits and self._life_left(lease) >= _needed_life(job):
                soon.remove(lease)
                return lease
        return None

    def _on_cordoned_node(self, lease: LeaseView) -> bool:
        return any(share.node in self.cordoned for share in lease.shares)

    def _life_left(self, lease: LeaseView) -> float:
        if lease.expires_at is None:
            return float("inf")
        return (lease.expires_at - self.snapshot.now).total_seconds()

    def _reuse(self, job: WaitingJob, lease: LeaseView) -> Verdict:
        self.warm[(lease.owner, lease.environment, lease.gang)].remove(lease)
        reason = f"starts at once on your warm lease {lease.id}"
        self.actions.append(StartOnWarm(job.id, lease.id, reason))
        return Verdict(job.id, Choice.REUSE, reason, expected_start=self.snapshot.now)

    # ------------------------------------------------------------------ the pool

    def _start_on_pool(self, job: WaitingJob) -> Verdict | None:
        gang, now = job.requirements.gang, self.snapshot.now
        if job.requirements.place is Place.CLOUD or not self.snapshot.pool_available:
            return None
        ends_in_time = self._ends_before_reservation(job)
        if (gang, ends_in_time) in self.blocked:
            return None
        shares = self._find(gang, ends_in_time)
        if shares is None:
            self.blocked.add((gang, ends_in_time))
            if self.reservation is None and self._fits_pool(gang):
                self._reserve(job)
            return None
        self.room.take(shares)
        where = ", ".join(share.node for share in shares)
        reason = f"{gang.describe()} free now on {where}"
        self.actions.append(StartOnPool(job.id, gang, shares, reason))
        return Verdict(job.id, Choice.START, reason, expected_start=now)

    def _find(self, gang: Gang, ends_in_time: bool) -> tuple[NodeShare, ...] | None:
        """Backfill: a job that is over before the reserved start may use the reserved cards."""
        if self.reservation is None or ends_in_time:
            return self.room.find(gang)
        rest = self.room.copy()
        rest.take(self.reservation.held(rest))
        return rest.find(gang)

    def _ends_before_reservation(self, job: WaitingJob) -> bool:
        if self.reservation is None or self.reservation.start is None:
            return False
        wishes = job.requirements
        limit = wishes.max_runtime_seconds
        if limit is None:
            return False
        return self.snapshot.now + timedelta(seconds=limit) <= self.reservation.start

    def _reserve(self, job: WaitingJob) -> None:
        """The first job that the pool cannot start now gets a reservation, and warm leases that
        stand in its way are let go."""
        self._free_warm_for(job)
        self.reservation = reserve(
            job.id, job.requirements.gang, self.room, self._pool_leases(), self.snapshot.now
        )

    def _fits_pool(self, gang: Gang) -> bool:
        """Would the gang fit an empty pool? Asked once per shape."""
        if gang not in self.fitting:
            self.fitting[gang] = fits_pool(gang, self.snapshot.nodes)
        return self.fitting[gang]

    def _pool_leases(self) -> list[LeaseView]:
        return [lease for lease in self.snapshot.leases if lease.kind is LeaseKind.POOL]

    def _free_warm_for(self, job: WaitingJob) -> None:
        trial = self.room.copy()
        candidates = [le for group in self.warm.values() for le in group]
        candidates = [
            le for le in candidates if le.kind is LeaseKind.POOL and le.id not in self.released
        ]
        candidates.sort(key=lambda le: (le.idle_since or self.snapshot.now, le.id))
        chosen: list[LeaseView] = []
        for lease in candidates:
            trial.give(lease.shares)
            chosen.append(lease)
            if trial.find(job.requirements.gang) is not None:
                for needed in _only_needed(chosen, self.room, job.requirements.gang):
                    self._release(needed, f"its cards are needed by {job.id}")
                return

    # ------------------------------------------------------------------ waiting or renting

    def _wait_or_burst(self, job: WaitingJob, position: int, total: int) -> Verdict:
        wishes = job.requirements
        found = self._eligible(job)
        pool_start = self._expected_pool_start(job)
        waiting = self._waits_for(job, position, total, pool_start)
        options = [*self._pool_alternative(job, pool_start), *found.refused[:MOST_REFUSED_SHOWN]]
        if not found.offers:
            if wishes.place is Place.CLOUD:
                waiting += " " + _no_offer(found)
            return Verdict(job.id, Choice.WAIT, waiting, position, pool_start, None, tuple(options))
        return self._ask_strategy(job, position, found, pool_start, waiting, options)

    def _eligible(self, job: WaitingJob) -> Eligible:
        """Jobs with the same requirements have the same offers."""
        found = self.eligible.get(job.requirements)
        if found is None:
            snapshot = self.snapshot
            found = eligible_offers(
                job, snapshot.offers, snapshot.unavailable, self.policy, snapshot.now
            )
            self.eligible[job.requirements] = found
        return found

    def _ask_strategy(
        self,
        job: WaitingJob,
        position: int,
        found: Eligible,
        pool_start: datetime | None,
        waiting: str,
        options: list[Alternative],
    ) -> Verdict:
        now, policy = self.snapshot.now, self.policy
        best = found.offers[0]
        cost = Money(expected_cost(job, best, policy), best.currency)
        waited = (now - job.queued_at).total_seconds()
        if job.requirements.place is Place.CLOUD:
            burst, why = True, "the job asks for hybrid.place=cloud"
        elif waited < policy.burst.settle_seconds:
            burst, why = False, f"the queue settles for {policy.burst.settle_seconds:g} s first"
        else:
            answer = self.strategy.decide(Question(now, job, waited, best, cost, pool_start))
            burst, why = answer.burst, answer.reason
        for offer in found.offers if burst else found.offers[:MOST_REFUSED_SHOWN]:
            price = expected_cost(job, offer, policy)
            objection = self.budget.objection(offer, price) if burst else why
            if objection is None:
                rest = [o for o in found.offers if o is not offer]
                options += [alternative(job, o, policy, now, "costs more") for o in rest[:5]]
                return self._burst(job, offer, position, why, options)
            options.append(alternative(job, offer, policy, now, objection))
        note = f" Renting ({best.key}, about {cost}): {options[-1].verdict}."
        return Verdict(
            job.id, Choice.WAIT, waiting + note, position, pool_start, None, tuple(options[:12])
        )

    def _burst(
        self, job: WaitingJob, offer: Offer, position: int, why: str, options: list[Alternative]
    ) -> Verdict:
        cost = expected_cost(job, offer, self.policy)
        self.budget.spend(offer, cost)
        start = self.snapshot.now + timedelta(seconds=offer.ready_seconds)
        money = Money(cost, offer.currency)
        reason = f"burst to {offer.key} for about {money}, ready {clock_time(start)}, because {why}"
        self.actions.append(Burst(job.id, job.requirements.gang, offer, reason))
        return Verdict(job.id, Choice.BURST, reason, position, start, money, tuple(options[:12]))

    # ------------------------------------------------------------------ words

    def _expected_pool_start(self, job: WaitingJob) -> datetime | None:
        if self.reservation is not None and self.reservation.job_id == job.id:
            return self.reservation.start
        return None

    def _waits_for(self, job: WaitingJob, position: int, total: int, start: datetime | None) -> str:
        gang, snapshot = job.requirements.gang, self.snapshot
        place = f"Position {position} of {total}"
        if job.requirements.place is Place.CLOUD:
            return f"{place}; waits for a rented machine with {gang.describe()}."
        if not snapshot.pool_available:
            return f"{place}; the pool cannot be asked: {snapshot.pool_note}."
        if not self._fits_pool(gang):
            return f"{place}; the pool has no room for {gang.describe()} even when empty."
        if start is not None:
            eta = f"expected start {clock_time(start)}"
        elif self.reservation is not None and self.reservation.job_id != job.id:
            ahead = self.reservation
            after = f", not before {clock_time(ahead.start)}" if ahead.start else ""
            eta = f"starts after {ahead.job_id} or where it leaves room{after}"
        else:
            eta = "start not predictable: what runs now gave no estimate (hybrid.runtime)"
        return f"{place}; waits for {gang.describe()}; {eta}."

    def _pool_alternative(self, job: WaitingJob, start: datetime | None) -> Iterable[Alternative]:
        if job.requirements.place is not Place.CLOUD:
            runtime = expected_runtime(job, self.policy)
            yield Alternative(
                what=f"wait for the pool, then run {runtime:g} s there",
                expected_start=start,
                expected_cost=None,
                verdict="taken unless renting is" if start else "start cannot be told",
            )

    # ------------------------------------------------------------------ warm leases

    def _release_idle(self) -> None:
        limit = self.policy.leases.warm_seconds
        for lease in [le for group in self.warm.values() for le in group]:
            idle_since = lease.idle_since or self.snapshot.now
            idle = (self.snapshot.now - idle_since).total_seconds()
            if lease.id in self.released:
                continue
            if self._on_cordoned_node(lease):
                self._release(lease, "its node takes no new jobs (cordoned)")
            elif idle >= limit:
                self._release(lease, f"idle for {limit:g} s (leases.warm_seconds)")
            elif self._life_left(lease) < MINIMUM_LIFE_SECONDS:
                self._release(lease, "its lifetime is over (leases.max_lifetime_seconds)")

    def _release(self, lease: LeaseView, reason: str) -> None:
        self.released.add(lease.id)
        self.actions.append(ReleaseLease(lease.id, reason))


def _is_warm(lease: LeaseView) -> bool:
    return lease.state is LeaseState.READY and lease.job_id is None


def _may_run_in(job: WaitingJob, lease: LeaseView) -> bool:
    wanted = job.requirements.place
    if lease.kind is LeaseKind.CLOUD:
        return wanted is not Place.ONPREM
    return wanted is not Place.CLOUD


def _needed_life(job: WaitingJob) -> float:
    limit = job.requirements.max_runtime_seconds
    return max(MINIMUM_LIFE_SECONDS, limit or 0.0)


def _only_needed(chosen: list[LeaseView], room: Room, gang: Gang) -> list[LeaseView]:
    """Drop from `chosen` every lease without which the gang still fits."""
    needed = list(chosen)
    for lease in chosen:
        trial = room.copy()
        rest = [le for le in needed if le is not lease]
        for other in rest:
            trial.give(other.shares)
        if trial.find(gang) is not None:
            needed = rest
    return needed


def _no_offer(found: Eligible) -> str:
    if not found.refused:
        return "No installed provider offers such a machine (hybrid offer ls)."
    first = found.refused[0]
    return f"No offer can be taken: {first.what}: {first.verdict}."
