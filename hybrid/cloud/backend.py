"""Cloud leases over any provider: launch, join, watch, and end until *observed* gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from hybrid.cloud.bootstrap import render
from hybrid.lease.gate import gate
from hybrid.ports import (
    Acquired,
    Clock,
    Endpoint,
    ErrorKind,
    Health,
    Instance,
    InstanceState,
    LaunchRequest,
    LeaseHealth,
    LeaseTask,
    LeaseUnavailable,
    Progress,
    Provider,
    ProviderError,
    RayCluster,
    Reachable,
)

T = TypeVar("T")

#: A machine that a list does not show is not gone before it is this old: lists lag.
VISIBLE_AFTER = timedelta(seconds=120)
CALL_TIMEOUT_SECONDS = 45.0
#: Refusals after which nothing was launched, for certain.
_CERTAIN = frozenset(
    {
        ErrorKind.CAPACITY,
        ErrorKind.QUOTA,
        ErrorKind.AUTH,
        ErrorKind.UNSUPPORTED,
        ErrorKind.BAD_PARAMETER,
    }
)


class LaunchUnclear(ConnectionError):
    """The launch neither succeeded nor was refused: it is repeated with the same token."""


class CloudBackend:
    """Implements `hybrid.ports.LeaseBackend` for rented machines."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        orchestrator_id: str,
        clock: Clock,
        connect: Callable[[Endpoint], RayCluster],
        ray_version: str,
    ) -> None:
        self._providers = providers
        self._orchestrator_id = orchestrator_id
        self._clock = clock
        self._connect = connect
        self._ray_version = ray_version

    async def acquire(self, task: LeaseTask) -> Acquired:
        if task.offer is None or task.hard_end_at is None:
            raise ValueError(f"lease {task.id} is no cloud lease")
        provider = self._provider(task)
        if provider is None:
            name = task.offer.provider
            raise LeaseUnavailable(f"provider {name} is not installed", ErrorKind.UNSUPPORTED)
        request = LaunchRequest(
            token=task.token,
            offer=task.offer,
            count=task.gang.nodes,
            user_data=render(task, self._orchestrator_id),
            tags=task.tags,
            expires_at=task.hard_end_at,
            price_ceiling=task.price_ceiling,
        )
        try:
            made = await self._ask(lambda: provider.launch(request))
        except ProviderError as error:
            if error.kind in _CERTAIN:
                raise LeaseUnavailable(f"{task.offer.key}: {error}", error.kind) from error
            raise LaunchUnclear(f"{task.offer.key}: {error}") from error
        return Acquired(instance_ids=tuple(machine.id for machine in made))

    async def progress(self, task: LeaseTask) -> Progress:
        provider = self._provider(task)
        if provider is None:
            return Progress("", failed="its provider is not installed any more")
        machines = await self._machines(provider, task)
        for machine in machines:
            if machine.state in (InstanceState.STOPPING, InstanceState.GONE):
                why = machine.state_reason or "without a reason"
                return Progress("", failed=f"machine {machine.id} ended while booting: {why}")
        if not machines:
            return Progress("rented; the provider does not list the machine yet")
        machine = machines[0]
        if machine.state is InstanceState.PENDING:
            return Progress(f"machine {machine.id} ({machine.instance_type}) is booting")
        return await self._join(provider, task, machine)

    async def _join(self, provider: Provider, task: LeaseTask, machine: Instance) -> Progress:
        if not isinstance(provider, Reachable):
            return Progress("", failed=f"provider {provider.name} gives no way to its machines")
        url = await self._ask(lambda: provider.endpoint(machine.id))
        if url is None:
            lines = (await self._ask(lambda: provider.boot_log(machine.id))).splitlines()
            last = f": {lines[-1]}" if lines else ""
            return Progress(f"machine {machine.id} is up and prepares its Ray cluster{last}")
        found = await gate(
            Endpoint(url, task.cluster_token), task.gang, self._ray_version, self._connect
        )
        return replace(found, message=f"machine {machine.id}: {found.message}")

    async def health(self, task: LeaseTask) -> LeaseHealth:
        provider = self._provider(task)
        if provider is None:
            return LeaseHealth(Health.UNREACHABLE, "its provider is not installed any more")
        try:
            machines = await self._machines(provider, task)
        except (ProviderError, TimeoutError) as error:
            return LeaseHealth(Health.UNREACHABLE, str(error))
        for machine in machines:
            if machine.state in (InstanceState.STOPPING, InstanceState.GONE):
                why = machine.state_reason or "no reason given"
                reason = f"machine {machine.id} is {machine.state}: {why}"
                return LeaseHealth(Health.GONE, reason, machine.reclaimed)
        if not machines:
            return LeaseHealth(Health.GONE, "the provider no longer knows the machine")
        return LeaseHealth(Health.ALIVE)

    async def renew(self, task: LeaseTask, expires_at: datetime) -> None:
        """Nothing to do: the fence of a rented machine is its hard end, set at launch."""

    async def sweep(self, task: LeaseTask, attempt_id: str) -> str | None:
        provider = self._provider(task)
        if not isinstance(provider, Reachable):
            return "leftovers of a job cannot be looked for on this provider's machines"
        left = 0
        for machine_id in task.instance_ids:
            left += await self._ask(partial(provider.sweep, machine_id, attempt_id))
        return f"{left} processes of the job would not die" if left else None

    async def release(self, task: LeaseTask) -> str | None:
        """Terminate whatever carries the lease's tag or id, until it is seen gone."""
        remains = []
        for provider in self._candidates(task):
            machines = await self._tagged(provider, task)
            for machine in machines:
                if machine.state is not InstanceState.GONE:
                    await self._ask(partial(provider.terminate, machine.id))
                    remains.append(f"{provider.name} {machine.id} is {machine.state}")
            remains += await self._end_unlisted(provider, task, machines)
        if not remains and task.offer is not None and self._may_still_appear(task):
            remains.append("the launch was never answered: its machine may still appear")
        return "; ".join(remains) or None

    async def _end_unlisted(
        self, provider: Provider, task: LeaseTask, listed: Sequence[Instance]
    ) -> list[str]:
        """Machines that we know by id and a lagging list does not show."""
        shown = {machine.id for machine in listed}
        hidden = [m for m in task.instance_ids if m not in shown]
        if not hidden or self._age(task) > VISIBLE_AFTER:
            return []
        for machine_id in hidden:
            await self._ask(partial(provider.terminate, machine_id))
        return [f"{provider.name} does not list {', '.join(hidden)} yet"]

    def _may_still_appear(self, task: LeaseTask) -> bool:
        return task.acquired is None and self._age(task) < VISIBLE_AFTER

    def _age(self, task: LeaseTask) -> timedelta:
        if task.requested_at is None:
            return VISIBLE_AFTER * 2
        return self._clock.now() - task.requested_at

    async def found(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for provider in self._providers.values():
            for machine in await self._ask(provider.instances):
                ours = machine.tags.get("hybrid-orchestrator") == self._orchestrator_id
                if ours and machine.state is not InstanceState.GONE:
                    lease_id = machine.tags.get("hybrid-lease", "")
                    found[lease_id] = f"{provider.name} {machine.id} ({machine.state})"
        return found

    # ------------------------------------------------------------------ inside

    def _provider(self, task: LeaseTask) -> Provider | None:
        return self._providers.get(task.offer.provider) if task.offer else None

    def _candidates(self, task: LeaseTask) -> Sequence[Provider]:
        """The lease's provider; for a stray without an offer, all of them."""
        if task.offer is None:
            return list(self._providers.values())
        provider = self._provider(task)
        if provider is None:
            raise LaunchUnclear(
                f"provider {task.offer.provider} is not installed any more: install it, else "
                f"what lease {task.id} rented there cannot be ended"
            )
        return [provider]

    async def _machines(self, provider: Provider, task: LeaseTask) -> list[Instance]:
        """By exact id. One that is too young to be listed counts as pending."""
        listed = {m.id: m for m in await self._tagged(provider, task)}
        young = self._age(task) < VISIBLE_AFTER
        machines = []
        for machine_id in task.instance_ids:
            if machine_id in listed:
                machines.append(listed[machine_id])
            elif young and task.offer is not None:
                pending = Instance(
                    machine_id,
                    InstanceState.PENDING,
                    provider.name,
                    task.offer.zone,
                    task.offer.instance_type,
                )
                machines.append(pending)
        return machines

    async def _tagged(self, provider: Provider, task: LeaseTask) -> list[Instance]:
        listed = await self._ask(provider.instances)
        return [
            machine
            for machine in listed
            if machine.tags.get("hybrid-lease") == task.id
            and machine.tags.get("hybrid-orchestrator") == self._orchestrator_id
        ]

    async def _ask(self, call: Callable[[], T]) -> T:
        async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
            return await asyncio.to_thread(call)
