"""What the gateway may ask of the controller (implements `hybrid.gateway.deps.ControllerView`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal

from hybrid import __version__, api
from hybrid.cloud.sweeper import find_leaks
from hybrid.core.feasible import why_never
from hybrid.core.model import Node, Requirements
from hybrid.core.policy import JobPolicy
from hybrid.policy.files import LoadedPolicy
from hybrid.policy.schema import PolicyError
from hybrid.ports import Checkable, Provider, ProviderError
from hybrid.service.controller import Controller
from hybrid.service.observe import cloud_use, pool_nodes
from hybrid.service.providers import Installed
from hybrid.store.jobs import live_counts
from hybrid.store.leases import leases_in
from hybrid.store.marks import card_marks, node_marks


class Facade:
    """Answers from the last round where that is enough, else from the store."""

    def __init__(
        self, controller: Controller, installed: Installed, ray_commit: str, started_at: datetime
    ) -> None:
        self._controller, self._installed = controller, installed
        self._deps = controller.deps
        self._started_at = started_at
        self.ray_version = self._deps.ray_version
        self.ray_commit = ray_commit
        self.orchestrator_id = self._deps.orchestrator_id

    def wake(self, lease_id: str | None = None) -> None:
        self._controller.wake()
        self._controller.nudge_lease(lease_id)

    def why_never(self, requirements: Requirements) -> str | None:
        """Before the first look at the pool nobody can say never."""
        snapshot = self._controller.last.snapshot
        if snapshot is None or not snapshot.pool_available:
            return None
        return why_never(requirements, snapshot.nodes, snapshot.offers)

    def job_defaults(self) -> JobPolicy:
        return self._deps.policies.current.policy.jobs

    def expected_starts(self) -> Mapping[str, datetime]:
        plan = self._controller.last.plan
        if plan is None:
            return {}
        return {v.job_id: v.expected_start for v in plan.verdicts if v.expected_start is not None}

    def sentences(self) -> Mapping[str, str]:
        return self._controller.sentences()

    def status(self) -> api.StatusOut:
        last, policies = self._controller.last, self._deps.policies
        with self._deps.store.read() as session:
            leases = leases_in(session)
            use = cloud_use(session, leases, self._deps.clock.now())
            jobs = live_counts(session)
        cards = [card for node in self._nodes() for card in node.cards]
        return api.StatusOut(
            version=__version__,
            ray_version=self.ray_version,
            orchestrator_id=self.orchestrator_id,
            started_at=self._started_at,
            policy=policies.current.name,
            policy_error=policies.error,
            jobs=jobs,
            leases=dict(Counter(str(lease.state) for lease in leases)),
            cards_total=len(cards),
            cards_free=sum(card.free for card in cards),
            cards_unusable=sum(card.unusable is not None for card in cards),
            pool_available=last.pool.available,
            pool_note=last.pool.note,
            rented_instances=use.instances,
            rented_per_hour=use.price_per_hour,
            spent_today=use.spent_today.quantize(Decimal("0.000001")),
            currency=policies.current.policy.caps.currency,
            last_tick_at=last.at,
            tick_seconds=last.seconds,
            tick_error=last.error,
        )

    def _nodes(self) -> Sequence[Node]:
        with self._deps.store.read() as session:
            return pool_nodes(
                self._controller.last.pool,
                leases_in(session),
                node_marks(session),
                card_marks(session),
            )

    def pool(self) -> api.PoolOut:
        with self._deps.store.read() as session:
            draining = {name for name, mark in node_marks(session).items() if mark.draining}
        pool = self._controller.last.pool
        return api.PoolOut(
            available=pool.available,
            note=pool.note,
            nodes=[
                api.NodeOut(
                    id=node.id,
                    address=node.address,
                    cpus=node.cpus,
                    free_cpus=node.free_cpus,
                    memory_bytes=node.memory_bytes,
                    cordoned=node.cordoned,
                    draining=node.id in draining,
                    cards=[api.CardOut.model_validate(card) for card in node.cards],
                )
                for node in self._nodes()
            ],
        )

    def offers(self) -> Sequence[api.OfferOut]:
        snapshot = self._controller.last.snapshot
        blocked = snapshot.unavailable if snapshot else {}
        return [
            api.OfferOut(
                provider=offer.provider,
                region=offer.region,
                zone=offer.zone,
                instance_type=offer.instance_type,
                market=str(offer.market),
                gpu_model=offer.gpu_model,
                gpus=offer.gpus,
                gpu_memory_bytes=offer.gpu_memory_bytes,
                cpus=offer.cpus,
                memory_bytes=offer.memory_bytes,
                price_per_hour=offer.price_per_hour,
                currency=offer.currency,
                price_source=offer.price_source,
                price_as_of=offer.price_as_of,
                ready_seconds=offer.ready_seconds,
                unavailable=blocked.get(offer.key)
                or (None if offer.price_per_hour else "its price is unknown"),
            )
            for offer in self._controller.last.offers.offers
        ]

    # ------------------------------------------------------------------ providers

    def providers(self) -> Sequence[api.ProviderOut]:
        seen = self._controller.last.offers
        count = Counter(offer.provider for offer in seen.offers)
        return [
            api.ProviderOut(
                name=name,
                package=package,
                loaded=name in self._installed.providers,
                error=self._installed.errors.get(name) or seen.errors.get(name),
                offers=count[name],
            )
            for name, package in sorted(self._installed.packages.items())
        ]

    def check_provider(self, name: str) -> Sequence[api.CheckLineOut] | None:
        if name not in self._installed.packages:
            return None
        if name in self._installed.errors:
            text = self._installed.errors[name]
            return [api.CheckLineOut(name="import", ok=False, detail=text, hint="reinstall it")]
        provider = self._installed.providers[name]
        if not isinstance(provider, Checkable):
            return [_offers_line(provider)]
        return [api.CheckLineOut.model_validate(line) for line in provider.check()]

    def leaks(self, terminate: bool) -> Sequence[api.LeakOut]:
        with self._deps.store.read() as session:
            live = frozenset(lease.id for lease in leases_in(session))
        found = find_leaks(
            self._installed.providers.values(),
            self.orchestrator_id,
            live,
            self._deps.clock.now(),
        )
        if terminate:
            for leak in found:
                self._installed.providers[leak.provider].terminate(leak.instance.id)
        return [
            api.LeakOut(
                provider=leak.provider,
                instance_id=leak.instance.id,
                lease_id=leak.lease_id,
                state=str(leak.instance.state),
                age_seconds=leak.age_seconds,
                detail=f"{leak.instance.instance_type} in {leak.instance.zone}",
                terminated=terminate,
            )
            for leak in found
        ]

    # ------------------------------------------------------------------ policies

    def policies(self) -> Sequence[api.PolicyOut]:
        return [self._try(name) for name in sorted(self._deps.policies.known())]

    def _try(self, name: str) -> api.PolicyOut:
        try:
            return self.policy(name)
        except PolicyError as error:
            path = self._deps.policies.known()[name]
            return api.PolicyOut(
                name=name,
                sha256="",
                text=path.read_text(),
                source=str(path),
                in_force=False,
                error=str(error),
            )

    def policy(self, name: str) -> api.PolicyOut:
        current = self._deps.policies.current
        if name in ("", "current"):
            return self._out(current)
        return self._out(self._deps.policies.load(name))

    def validate_policy(self, wanted: api.PolicyIn) -> api.PolicyOut:
        if wanted.text is None:
            return self.policy(wanted.name)
        return self._out(self._deps.policies.validate(wanted.name, wanted.text))

    def use_policy(self, wanted: api.PolicyIn, by: str) -> api.PolicyOut:
        return self._out(self._deps.policies.use(wanted.name, wanted.text, by))

    def _out(self, loaded: LoadedPolicy) -> api.PolicyOut:
        current = self._deps.policies.current
        in_force = loaded.name == current.name and loaded.sha256 == current.sha256
        return api.PolicyOut(
            name=loaded.name,
            sha256=loaded.sha256,
            text=loaded.text,
            source=loaded.source,
            in_force=in_force,
            error=self._deps.policies.error if in_force else None,
        )


def _offers_line(provider: Provider) -> api.CheckLineOut:
    """A provider without checks of its own: can it list anything?"""
    try:
        count = len(provider.offers())
    except ProviderError as error:
        return api.CheckLineOut(name="offers", ok=False, detail=str(error), hint="see the error")
    return api.CheckLineOut(name="offers", ok=count > 0, detail=f"{count} offers", hint="")
