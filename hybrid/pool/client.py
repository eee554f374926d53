"""The controller's side of the bridge: asynchronous, with time-outs, restarted when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from hybrid.core.model import NodeShare
from hybrid.lease.spec import GuardState, LeaseSpec
from hybrid.ports import CardInfo, PoolNode, PoolView

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_SECONDS = 40.0
CALL_TIMEOUT_SECONDS = 30.0
RESTART_PAUSE_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)
_LINE_LIMIT_BYTES = 64 * 1024 * 1024


class PoolUnavailable(ConnectionError):
    """The standing Ray cluster cannot be asked now. Says nothing about the leases on it."""


class PoolRefused(Exception):
    """The pool answered, and the answer is no."""


class PoolClient:
    """Calls into the bridge. Every method raises `PoolUnavailable` when Ray does not answer."""

    def __init__(self, address: str, token: str, orchestrator_id: str, log_file: Path) -> None:
        self._command = (sys.executable, "-m", "hybrid.pool.bridge", address, orchestrator_id)
        self._address, self._token, self._log_file = address, token, log_file
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next_id = 1
        self._failures = 0
        self._retry_at = 0.0
        self._starting = asyncio.Lock()
        self.ray_version = ""

    # ------------------------------------------------------------------ calls

    async def view(self) -> PoolView:
        """The pool now; `available` False with the reason when Ray does not answer."""
        try:
            nodes = await self._call("view", {}, timeout=15.0)
        except PoolUnavailable as error:
            return PoolView(available=False, note=str(error))
        return PoolView(available=True, nodes=tuple(map(_pool_node, nodes)))

    async def reserve(
        self, lease_id: str, shares: Sequence[NodeShare], resources: Mapping[str, float]
    ) -> tuple[NodeShare, ...]:
        """All or nothing; the cards that Ray gave. Raises `PoolRefused`."""
        given = await self._call(
            "reserve",
            {"lease_id": lease_id, "shares": _plain(shares), "resources": dict(resources)},
        )
        return tuple(
            NodeShare(s["node"], tuple(s["cards"]), s["cpus"], s["memory_bytes"]) for s in given
        )

    async def unreserve(self, lease_id: str) -> None:
        await self._call("unreserve", {"lease_id": lease_id})

    async def reservations(self) -> list[str]:
        return list(await self._call("reservations", {}))

    async def guards(self) -> Mapping[str, list[str]]:
        """Lease id → nodes on which a guard of it lives."""
        return dict(await self._call("guards", {}))

    async def start(self, node: str, spec: LeaseSpec) -> GuardState:
        found = await self._call(
            "start", {"node": node, "lease_id": spec.lease_id, "spec": json.loads(spec.to_json())}
        )
        return _state(found)

    async def check(
        self, lease_id: str, shares: Sequence[NodeShare], resources: Mapping[str, float]
    ) -> Mapping[str, GuardState]:
        """The guards of a lease by node; re-reserves what a new head does not know."""
        found = await self._call(
            "check",
            {"lease_id": lease_id, "shares": _plain(shares), "resources": dict(resources)},
        )
        return {node: _state(state) for node, state in found.items()}

    async def renew(self, node: str, lease_id: str, expires_at: float) -> None:
        await self._call("renew", {"node": node, "lease_id": lease_id, "expires_at": expires_at})

    async def stop(self, node: str, lease_id: str, reason: str) -> GuardState:
        found = await self._call("stop", {"node": node, "lease_id": lease_id, "reason": reason})
        return _state(found)

    async def sweep(self, node: str, lease_id: str, attempt_id: str) -> int:
        return int(
            await self._call(
                "sweep", {"node": node, "lease_id": lease_id, "attempt_id": attempt_id}
            )
        )

    # ------------------------------------------------------------------ the child

    async def _call(
        self, method: str, params: Mapping[str, object], timeout: float = CALL_TIMEOUT_SECONDS
    ) -> Any:
        process = await self._connected()
        if process.stdin is None:
            raise PoolUnavailable("the bridge has no input")
        call_id, self._next_id = self._next_id, self._next_id + 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = answer
        line = json.dumps({"id": call_id, "method": method, "params": params}) + "\n"
        try:
            process.stdin.write(line.encode())
            await process.stdin.drain()
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError as error:
            raise PoolUnavailable(
                f"the pool at {self._address} did not answer {method} in {timeout:g} s"
            ) from error
        except (ConnectionResetError, BrokenPipeError) as error:
            raise PoolUnavailable(f"the bridge to {self._address} broke") from error
        finally:
            self._waiting.pop(call_id, None)

    async def _connected(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return self._process
            if time.monotonic() < self._retry_at:
                raise PoolUnavailable(f"no connection to the Ray cluster at {self._address}")
            try:
                self._process = await self._start()
            except PoolUnavailable:
                pause = RESTART_PAUSE_SECONDS[min(self._failures, len(RESTART_PAUSE_SECONDS) - 1)]
                self._failures += 1
                self._retry_at = time.monotonic() + pause
                raise
            self._failures = 0
            return self._process

    async def _start(self) -> asyncio.subprocess.Process:
        await self._end_child()
        with self._log_file.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=bridge_environment(self._token),
                limit=_LINE_LIMIT_BYTES,
            )
        self._process = process
        try:
            if process.stdout is None:
                raise PoolUnavailable("the bridge has no output")
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                hello = await process.stdout.readline()
        except TimeoutError as error:
            await self._end_child()
            raise PoolUnavailable(f"no Ray cluster answered at {self._address}") from error
        if not hello:
            raise PoolUnavailable(
                f"no Ray cluster answered at {self._address} (details: {self._log_file})"
            )
        self.ray_version = str(json.loads(hello)["result"]["ray_version"])
        self._reader = asyncio.create_task(self._read(process.stdout))
        log.info("pool.connected", address=self._address, ray_version=self.ray_version)
        return process

    async def _read(self, stream: asyncio.StreamReader) -> None:
        """Hand each answer to whoever waits for it; at the end, fail those who still wait."""
        try:
            while line := await stream.readline():
                reply = json.loads(line)
                waiting = self._waiting.get(reply["id"])
                if waiting is None or waiting.done():
                    continue
                error = reply.get("error")
                if error is None:
                    waiting.set_result(reply["result"])
                elif error["kind"] == "refused":
                    waiting.set_exception(PoolRefused(error["text"]))
                else:
                    waiting.set_exception(PoolUnavailable(error["text"]))
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(PoolUnavailable("the bridge ended"))

    async def _end_child(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._process = None

    async def close(self) -> None:
        await self._end_child()


def bridge_environment(token: str) -> dict[str, str]:
    """The child's environment: ours without Ray's settings, with the pool's own token."""
    from os import environ

    clean = {k: v for k, v in environ.items() if not k.startswith(("RAY_", "HYBRID_"))}
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}
    return {**clean, **auth}


def _plain(shares: Sequence[NodeShare]) -> list[dict[str, object]]:
    return [
        {
            "node": share.node,
            "cards": list(share.cards),
            "cpus": share.cpus,
            "memory_bytes": share.memory_bytes,
        }
        for share in shares
    ]


def _state(found: Mapping[str, Any]) -> GuardState:
    if found["phase"] == "absent":
        return GuardState("starting", reason="absent")
    return GuardState.from_mapping(found)


def _pool_node(node: Mapping[str, Any]) -> PoolNode:
    return PoolNode(
        id=node["id"],
        ray_node_id=node["ray_node_id"],
        address=node["address"],
        cpus=node["cpus"],
        free_cpus=node["free_cpus"],
        memory_bytes=node["memory_bytes"],
        free_memory_bytes=node["free_memory_bytes"],
        free_gpus=node["free_gpus"],
        resources=tuple((name, amount) for name, amount in node["resources"]),
        cards=tuple(
            CardInfo(c["uuid"], c["model"], c["memory_bytes"], c["index"], c["unusable"])
            for c in node["cards"]
        ),
    )


class NoPool:
    """The inventory of an installation without a standing cluster: it only rents."""

    async def view(self) -> PoolView:
        return PoolView(available=True, note="no pool is configured")
