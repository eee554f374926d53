"""Pool leases: cards reserved with Ray, a guard per node, the gang's own Ray cluster on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from hybrid.core.model import NodeShare
from hybrid.lease.gate import gate
from hybrid.lease.spec import GuardState, LeaseSpec, object_store_bytes
from hybrid.pool.client import PoolClient, PoolRefused, PoolUnavailable
from hybrid.ports import (
    Acquired,
    Clock,
    Endpoint,
    ErrorKind,
    Health,
    LeaseHealth,
    LeaseTask,
    LeaseUnavailable,
    Progress,
    RayCluster,
)

#: How much later than its fence a node that cannot be asked is taken to have acted on it.
FENCE_MARGIN = timedelta(seconds=15)


class PoolBackend:
    """Implements `hybrid.ports.LeaseBackend` for the on-prem pool."""

    def __init__(
        self,
        client: PoolClient,
        orchestrator_id: str,
        clock: Clock,
        connect: Callable[[Endpoint], RayCluster],
        ray_version: str,
    ) -> None:
        self._client = client
        self._orchestrator_id = orchestrator_id
        self._clock = clock
        self._connect = connect
        self._ray_version = ray_version
        #: Set for every guard that is started (tests force the mode without namespaces).
        self.guard_env: Mapping[str, str] = {}

    async def acquire(self, task: LeaseTask) -> Acquired:
        try:
            shares = await self._client.reserve(task.id, task.shares, _resources(task))
        except PoolRefused as refusal:
            raise LeaseUnavailable(str(refusal), ErrorKind.CAPACITY) from refusal
        return Acquired(shares=shares)

    async def progress(self, task: LeaseTask) -> Progress:
        """Head first, then the workers, then the gate."""
        first, *others = task.shares
        try:
            head = await self._client.start(first.node, self._spec(task, first, None))
            if head.phase == "ended":
                return Progress("", failed=f"on {first.node}: {head.reason}")
            if head.phase != "up" or head.gcs_address is None or head.dashboard_url is None:
                return Progress(f"starting the lease's Ray cluster on {first.node}")
            states = await asyncio.gather(
                *(self._client.start(s.node, self._spec(task, s, head.gcs_address)) for s in others)
            )
        except PoolRefused as refusal:
            return Progress("", failed=str(refusal))
        for share, state in zip(others, states, strict=True):
            if state.phase == "ended":
                return Progress("", failed=f"on {share.node}: {state.reason}")
        return await gate(
            Endpoint(head.dashboard_url, task.cluster_token),
            task.gang,
            self._ray_version,
            self._connect,
        )

    def _spec(self, task: LeaseTask, share: NodeShare, head_address: str | None) -> LeaseSpec:
        return LeaseSpec(
            lease_id=task.id,
            orchestrator_id=self._orchestrator_id,
            head=head_address is None,
            node_ip="",
            head_address=head_address,
            cards=share.cards,
            gpus=len(share.cards),
            cpus=share.cpus,
            memory_bytes=share.memory_bytes,
            token=task.cluster_token,
            expires_at=task.expires_at.timestamp(),
            python="",
            object_store_bytes=object_store_bytes(share.memory_bytes),
            resources=_resources(task),
            env=self.guard_env,
        )

    async def health(self, task: LeaseTask) -> LeaseHealth:
        try:
            states = await self._client.check(task.id, task.shares, _resources(task))
        except (PoolUnavailable, PoolRefused) as error:
            return LeaseHealth(Health.UNREACHABLE, str(error))
        for node, state in states.items():
            if state.phase == "ended":
                return LeaseHealth(Health.GONE, f"the lease ended on {node}: {state.reason}")
        return LeaseHealth(Health.ALIVE)

    async def renew(self, task: LeaseTask, expires_at: datetime) -> None:
        for share in task.shares:
            await self._client.renew(share.node, task.id, expires_at.timestamp())

    async def sweep(self, task: LeaseTask, attempt_id: str) -> str | None:
        try:
            left = [await self._client.sweep(s.node, task.id, attempt_id) for s in task.shares]
        except (PoolUnavailable, PoolRefused) as error:
            return f"its leftovers could not be looked for: {error}"
        return f"{sum(left)} processes of the job would not die" if any(left) else None

    async def release(self, task: LeaseTask) -> str | None:
        """Stop every guard, see it ended, give the reservation back."""
        remains = []
        for node in await self._nodes_of(task):
            try:
                state = await self._client.stop(node, task.id, "released")
            except PoolRefused as absent:
                if self._clock.now() < task.expires_at + FENCE_MARGIN:
                    fence = task.expires_at.strftime("%H:%M:%S UTC")
                    remains.append(f"{absent}; its own fence ends it at {fence}")
                continue
            if note := _not_gone(node, state):
                remains.append(note)
        if remains:
            return "; ".join(remains)
        await self._client.unreserve(task.id)
        return None

    async def _nodes_of(self, task: LeaseTask) -> list[str]:
        """From the lease's record; for a stray, wherever a guard of it lives."""
        if task.shares:
            return [share.node for share in task.shares]
        return (await self._client.guards()).get(task.id, [])

    async def found(self) -> Mapping[str, str]:
        guards = await self._client.guards()
        found = {lease: f"guard on {', '.join(nodes)}" for lease, nodes in guards.items()}
        for lease_id in await self._client.reservations():
            found.setdefault(lease_id, "a reservation in Ray")
        return found


def _resources(task: LeaseTask) -> dict[str, float]:
    return dict(task.gang.resources)


def _not_gone(node: str, state: GuardState) -> str | None:
    if state.phase != "ended":
        return f"the guard on {node} is still ending"
    if state.processes_left:
        return f"{state.processes_left} processes on {node} would not die"
    return None
