"""The bridge: a child process that is the Ray driver of the pool.

Ray ends a driver whose head stays away for a minute; the controller must not end with it. So
the driver lives here and speaks JSON lines over its standard input and output:
``{"id": 1, "method": "view", "params": {}}`` → ``{"id": 1, "result": …}`` or ``{"id": 1,
"error": {"kind": "refused" | "failed", "text": …}}``.

Run as ``python -m hybrid.pool.bridge ADDRESS ORCHESTRATOR_ID``; ends when its input ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray import cloudpickle
from ray._private.state import available_resources_per_node
from ray.util import get_placement_group, placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from hybrid import __version__
from hybrid.lease.spec import guard_source
from hybrid.pool import agent, cards

AGENT_TIMEOUT_SECONDS = 8.0
RESERVE_TIMEOUT_SECONDS = 4.0
PROBE_TIMEOUT_SECONDS = 20.0
_HEAD_MARK = "node:__internal_head__"
_OTHERS = "the head offers no cards while other nodes are there"


class Refused(Exception):
    """Ray will not reserve that: somebody else has it."""


class Bridge:
    """The methods that a client may call by name."""

    def __init__(self, orchestrator_id: str) -> None:
        self.orchestrator_id = orchestrator_id
        self.prefix = f"hybrid-{orchestrator_id}-"
        self.agents: dict[str, Any] = {}
        self.reserved: set[str] = set()
        self.lock = threading.Lock()

    # ------------------------------------------------------------------ looking

    def view(self) -> list[dict[str, Any]]:
        """Every live node that has an answering agent."""
        nodes = [node for node in ray.nodes() if node["Alive"]]
        free = available_resources_per_node()
        pending = [(node, self._agent(node).inventory.remote()) for node in nodes]
        found = []
        for node, reference in pending:
            try:
                inventory = ray.get(reference, timeout=AGENT_TIMEOUT_SECONDS)
            except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
                self.agents.pop(node["NodeID"], None)
                continue
            found.append(_node_view(node, free.get(node["NodeID"], {}), inventory))
        if sum(bool(node["cards"]) for node in found) > 1:
            for node in found:
                if node.pop("is_head"):
                    for card in node["cards"]:
                        card["unusable"] = card["unusable"] or _OTHERS
        for node in found:
            node.pop("is_head", None)
        return found

    def guards(self) -> dict[str, list[str]]:
        """Lease id → the nodes on which a guard of it lives."""
        living: dict[str, list[str]] = {}
        for node in self.view_raw():
            for lease_id in node["guards"]:
                living.setdefault(lease_id, []).append(node["id"])
        return living

    def view_raw(self) -> list[dict[str, Any]]:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        pending = [(node, self._agent(node).inventory.remote()) for node in nodes]
        return [
            {"id": _node_id(node), **ray.get(reference, timeout=AGENT_TIMEOUT_SECONDS)}
            for node, reference in pending
        ]

    def reservations(self) -> list[str]:
        """The lease ids that Ray holds something for."""
        return [
            entry["name"].removeprefix(self.prefix)
            for entry in placement_group_table().values()
            if entry["name"].startswith(self.prefix) and entry["state"] != "REMOVED"
        ]

    # ------------------------------------------------------------------ reserving

    def reserve(
        self, lease_id: str, shares: list[dict[str, Any]], resources: Mapping[str, float]
    ) -> list[dict[str, Any]]:
        """Reserve every share or none; the shares with the cards that Ray really gave."""
        nodes = {_node_id(node): node for node in ray.nodes() if node["Alive"]}
        for share in shares:
            if share["node"] not in nodes:
                raise Refused(f"node {share['node']} is not in the Ray cluster now")
        group = self._existing(lease_id)
        if group is None:
            bundles = [_bundle(share, nodes[share["node"]], resources) for share in shares]
            group = placement_group(bundles, name=self.prefix + lease_id, lifetime="detached")
        if not group.wait(RESERVE_TIMEOUT_SECONDS):
            remove_placement_group(group)
            where = ", ".join(f"{len(s['cards'])} cards on {s['node']}" for s in shares)
            raise Refused(f"Ray could not reserve {where}: something else holds them")
        try:
            given = [
                self._given(group, index, share, nodes[share["node"]])
                for index, share in enumerate(shares)
            ]
        except Refused:
            remove_placement_group(group)
            raise
        self.reserved.add(lease_id)
        return given

    def _existing(self, lease_id: str) -> PlacementGroup | None:
        try:
            return get_placement_group(self.prefix + lease_id)
        except ValueError:
            return None

    def _given(
        self, group: PlacementGroup, index: int, share: dict[str, Any], node: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Where cards are Ray's plain GPUs, only Ray knows which it reserved: ask it."""
        if not share["cards"] or _advertised(share, node):
            return share
        inventory = ray.get(self._agent(node).inventory.remote(), timeout=AGENT_TIMEOUT_SECONDS)
        by_index = {card["index"]: card for card in inventory["cards"]}
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        probe = ray.remote(num_cpus=0, num_gpus=len(share["cards"]))(_which_gpus)
        indices = ray.get(
            probe.options(scheduling_strategy=strategy).remote(), timeout=PROBE_TIMEOUT_SECONDS
        )
        unusable = [by_index[i]["unusable"] for i in indices if by_index[i]["unusable"]]
        if unusable:
            raise Refused(f"Ray gave a card on {share['node']} that is not in order: {unusable[0]}")
        return {**share, "cards": [by_index[i]["uuid"] for i in indices]}

    def unreserve(self, lease_id: str) -> None:
        self.reserved.discard(lease_id)
        group = self._existing(lease_id)
        if group is not None:
            remove_placement_group(group)

    # ------------------------------------------------------------------ guards

    def start(self, node: str, lease_id: str, spec: dict[str, Any]) -> dict[str, Any]:
        return dict(self._call(node, "start", lease_id, spec))

    def check(
        self,
        lease_id: str,
        shares: list[dict[str, Any]],
        resources: Mapping[str, float],
    ) -> dict[str, dict[str, Any]]:
        """Node → guard state. A living lease whose reservation went with an old head gets it
        back."""
        states = {s["node"]: dict(self._call(s["node"], "state", lease_id)) for s in shares}
        living = all(state["phase"] in ("starting", "up") for state in states.values())
        if living and lease_id not in self.reserved:
            self.reserve(lease_id, shares, resources)
        return states

    def renew(self, node: str, lease_id: str, expires_at: float) -> None:
        self._call(node, "renew", lease_id, expires_at)

    def stop(self, node: str, lease_id: str, reason: str) -> dict[str, Any]:
        return dict(self._call(node, "stop", lease_id, reason))

    def sweep(self, node: str, lease_id: str, attempt_id: str) -> int:
        return int(self._call(node, "sweep", lease_id, attempt_id))

    def _call(self, node_id: str, method: str, *arguments: object) -> Any:
        for node in ray.nodes():
            if node["Alive"] and _node_id(node) == node_id:
                call = getattr(self._agent(node), method)
                return ray.get(call.remote(*arguments), timeout=AGENT_TIMEOUT_SECONDS)
        raise Refused(f"node {node_id} is not in the Ray cluster now")

    def _agent(self, node: Mapping[str, Any]) -> Any:
        """The node's agent, made where it is missing (a node that came back has a new id)."""
        node_id = node["NodeID"]
        with self.lock:
            if node_id not in self.agents:
                self.agents[node_id] = (
                    ray.remote(agent.NodeAgent)
                    .options(
                        name=f"hybrid-agent-{__version__}-{self.orchestrator_id}-{node_id[:16]}",
                        lifetime="detached",
                        get_if_exists=True,
                        num_cpus=0,
                        max_concurrency=8,
                        max_restarts=-1,
                        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
                    )
                    .remote(
                        self.orchestrator_id,
                        _node_id(node),
                        node["NodeManagerAddress"],
                        guard_source(),
                    )
                )
            return self.agents[node_id]


def _which_gpus() -> list[int]:
    """Runs inside the reservation: the indices of the cards that Ray put in it."""
    return [int(index) for index in ray.get_gpu_ids()]


def _node_id(node: Mapping[str, Any]) -> str:
    return str(node.get("NodeName") or node["NodeManagerAddress"])


def _advertised(share: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    return all(f"gpu:{uuid}" in node["Resources"] for uuid in share["cards"])


def _bundle(
    share: Mapping[str, Any], node: Mapping[str, Any], resources: Mapping[str, float]
) -> dict[str, float]:
    bundle = {f"node:{node['NodeManagerAddress']}": 0.001, **resources}
    if share["cpus"] >= 0.001:
        bundle["CPU"] = share["cpus"]
    if share["memory_bytes"]:
        bundle["memory"] = share["memory_bytes"]
    if share["cards"] and _advertised(share, node):
        bundle.update({f"gpu:{uuid}": 1.0 for uuid in share["cards"]})
    elif share["cards"]:
        bundle["GPU"] = float(len(share["cards"]))
    return bundle


def _node_view(
    node: Mapping[str, Any], free: Mapping[str, float], inventory: Mapping[str, Any]
) -> dict[str, Any]:
    total = node["Resources"]
    standard = ("CPU", "GPU", "memory", "object_store_memory")
    return {
        "id": _node_id(node),
        "ray_node_id": node["NodeID"],
        "address": node["NodeManagerAddress"],
        "cpus": total.get("CPU", 0.0),
        "free_cpus": free.get("CPU", 0.0),
        "memory_bytes": int(total.get("memory", 0)),
        "free_memory_bytes": int(free.get("memory", 0)),
        "free_gpus": free.get("GPU", 0.0),
        "cards": inventory["cards"],
        "is_head": _HEAD_MARK in total,
        "resources": [
            [name, amount]
            for name, amount in sorted(total.items())
            if name not in standard and not name.startswith(("node:", "accelerator_type:"))
        ],
    }


def serve(bridge: Bridge, lines: Sequence[str] | Any, answer: Callable[[str], None]) -> None:
    """Answer each line in a thread of its own."""
    with ThreadPoolExecutor(max_workers=16) as workers:
        for line in lines:
            workers.submit(_handle, bridge, json.loads(line), answer)


def _handle(bridge: Bridge, request: Mapping[str, Any], answer: Callable[[str], None]) -> None:
    reply: dict[str, Any] = {"id": request["id"]}
    try:
        reply["result"] = getattr(bridge, request["method"])(**request["params"])
    except Refused as error:
        reply["error"] = {"kind": "refused", "text": str(error)}
    except Exception as error:  # noqa: BLE001  (whatever it is, the other side must hear of it)
        reply["error"] = {"kind": "failed", "text": f"{type(error).__name__}: {error}"[:2000]}
    answer(json.dumps(reply))


def main() -> None:
    """Connect, say that we are connected, serve until the input ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # end with the controller
    address, orchestrator_id = sys.argv[1:3]
    # Ray prints to stdout as it likes: keep the real one for answers only.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for module in (agent, cards):
        cloudpickle.register_pickle_by_value(module)
    ray.init(
        address=address,
        namespace="hybrid",
        log_to_driver=False,
        logging_level="ERROR",
        configure_logging=False,
    )
    write_lock = threading.Lock()

    def answer(line: str) -> None:
        with write_lock:
            channel.write(line + "\n")
            channel.flush()

    answer(json.dumps({"id": 0, "result": {"ray_version": ray.__version__}}))
    serve(Bridge(orchestrator_id), sys.stdin, answer)
    os._exit(0)


if __name__ == "__main__":
    main()
