"""The control loop: one snapshot, one plan, one written intent per round; a driver per lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog
from sqlmodel import Session

from hybrid.core.failover import Miss, unavailable_offers
from hybrid.core.model import Plan, Snapshot
from hybrid.core.plan import plan
from hybrid.ports import PoolView
from hybrid.service.act import Applied, Recorded, apply_plan
from hybrid.service.deps import OffersSeen, ServiceDeps
from hybrid.service.leader import Leadership
from hybrid.service.lease_driver import LeaseDriver
from hybrid.service.observe import boot_outcomes, observe
from hybrid.service.reconcile import reconcile
from hybrid.service.records import reading, writing
from hybrid.store.leases import leases_in
from hybrid.store.marks import misses_at

log = structlog.get_logger(__name__)

#: Rounds closer together than this are one round: a burst of submits wakes us once.
SETTLE_SECONDS = 0.02
OFFERS_TTL_SECONDS = 5.0
POOL_TTL_SECONDS = 0.5
RECONCILE_SECONDS = 30.0
PACKAGES_SECONDS = 300.0
POOL_TIMEOUT_SECONDS = 10.0


@dataclass(slots=True)
class LastRound:
    """What the last round saw and wanted, for status and for answers between rounds."""

    at: datetime | None = None
    seconds: float | None = None
    error: str | None = None
    snapshot: Snapshot | None = None
    plan: Plan | None = None
    pool: PoolView = PoolView(available=False, note="the pool has not been asked yet")
    offers: OffersSeen = OffersSeen()


@dataclass(slots=True)
class Controller:
    """Runs until cancelled. After a restart it finds every lease and attempt where it was."""

    deps: ServiceDeps
    leadership: Leadership
    last: LastRound = field(default_factory=LastRound)
    leads: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _drivers: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = field(default_factory=dict)
    _sentences: Mapping[str, str] = field(default_factory=dict)
    _recorded: Recorded = field(default_factory=Recorded)
    _pool_at: float = 0.0
    _offers_at: float = 0.0
    _loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """The loop. A round that fails is logged, shown in the status, and tried again."""
        self._loop = asyncio.get_running_loop()
        upkeep = asyncio.create_task(self._upkeep())
        try:
            while True:
                started = time.monotonic()
                try:
                    self.leads = await asyncio.to_thread(self.leadership.acquire)
                    if self.leads:
                        await self.tick()
                    else:
                        await self._stop_drivers()
                    self.last.error = None
                except Exception as error:
                    self.last.error = f"{type(error).__name__}: {error}"
                    log.exception("round.failed")
                self.last.seconds = time.monotonic() - started
                await self._pause()
        finally:
            upkeep.cancel()
            await asyncio.gather(upkeep, return_exceptions=True)
            await self._stop_drivers()
            self.leadership.close()

    async def _stop_drivers(self) -> None:
        """Let go of every lease without ending any: the next leader takes them up."""
        drivers = [task for task, _ in self._drivers.values()]
        self._drivers.clear()
        for task in drivers:
            task.cancel()
        await asyncio.gather(*drivers, return_exceptions=True)

    def wake(self) -> None:
        """Plan soon. May be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    def nudge_lease(self, lease_id: str | None) -> None:
        """Something on this lease's row changed on purpose. May be called from any thread."""
        entry = self._drivers.get(lease_id or "")
        if entry is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(entry[1].set)

    async def tick(self) -> None:
        """One round."""
        deps = self.deps
        pool, offers = await asyncio.gather(self._look_at_pool(), self._look_at_offers())
        now = deps.clock.now()
        in_force = deps.policies.current

        def see(session: Session) -> Snapshot:
            blocked = unavailable_offers(
                [Miss(m.offer_key, m.reason, m.until) for m in misses_at(session, now)],
                boot_outcomes(session, now, in_force.policy),
                now,
                in_force.policy,
            )
            return observe(session, pool, offers.offers, blocked, now)

        snapshot = await reading(deps.store, see)
        wanted = await asyncio.to_thread(plan, snapshot, in_force.policy, in_force.strategy)
        self.last.snapshot, self.last.plan, self.last.at = snapshot, wanted, now
        self._sentences = {v.job_id: v.reason for v in wanted.verdicts}
        applied = Applied((), {})
        if wanted.actions or wanted.verdicts:
            applied = await writing(
                deps.store,
                lambda s: apply_plan(
                    s, wanted, snapshot, in_force.policy, in_force.name, self._recorded, now
                ),
            )
        if applied.said:
            await asyncio.to_thread(deps.logs.say_each, applied.said)
        if applied.leases:
            self._pool_at = 0.0
        await self._start_drivers()
        for lease_id in applied.leases:
            self.nudge_lease(lease_id)

    def sentences(self) -> Mapping[str, str]:
        """Why each waiting job waits, as of the last round."""
        return self._sentences

    async def _look_at_pool(self) -> PoolView:
        if time.monotonic() - self._pool_at < POOL_TTL_SECONDS:
            return self.last.pool
        try:
            async with asyncio.timeout(POOL_TIMEOUT_SECONDS):
                self.last.pool = await self.deps.pool.view()
        except (TimeoutError, OSError) as error:
            self.last.pool = PoolView(
                available=False,
                nodes=self.last.pool.nodes,
                note=f"the pool did not answer: {type(error).__name__} {error}".strip(),
            )
        self._pool_at = time.monotonic()
        return self.last.pool

    async def _look_at_offers(self) -> OffersSeen:
        if time.monotonic() - self._offers_at < OFFERS_TTL_SECONDS:
            return self.last.offers
        self.last.offers = await asyncio.to_thread(self.deps.list_offers)
        self._offers_at = time.monotonic()
        return self.last.offers

    async def _start_drivers(self) -> None:
        """Every open lease has a driver: also those that a former process left behind."""
        open_leases = await reading(self.deps.store, lambda s: [lease.id for lease in leases_in(s)])
        for lease_id in open_leases:
            if lease_id not in self._drivers:
                nudge = asyncio.Event()
                driver = LeaseDriver(self.deps, lease_id, nudge, self.wake)
                task = asyncio.create_task(driver.run(), name=lease_id)
                self._drivers[lease_id] = (task, nudge)
        for lease_id in [i for i, (task, _) in self._drivers.items() if task.done()]:
            task, _ = self._drivers.pop(lease_id)
            if not task.cancelled() and task.exception() is not None:
                log.error("lease.driver-died", lease=lease_id, error=repr(task.exception()))

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self.deps.tick_seconds):
                await self._wake.wait()
                # A long round is followed by as long a rest: submits must not wait for plans.
                await asyncio.sleep(max(SETTLE_SECONDS, self.last.seconds or 0.0))
        except TimeoutError:
            pass
        self._wake.clear()

    async def _upkeep(self) -> None:
        """Slow chores: strays out there, packages that nobody needs, a policy file that changed."""
        first_seen: dict[str, datetime] = {}
        swept_packages = time.monotonic()
        while True:
            try:
                if self.leads:
                    await reconcile(self.deps, first_seen)
                await asyncio.to_thread(self.deps.policies.reload)
                if time.monotonic() - swept_packages > PACKAGES_SECONDS:
                    swept_packages = time.monotonic()
                    await asyncio.to_thread(self.deps.collect_packages)
            except Exception as error:  # noqa: BLE001  (chores never end the controller)
                log.warning("upkeep.failed", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(RECONCILE_SECONDS)
