"""The node agent: an actor on each node of the pool that lists cards and keeps lease guards.

Shipped by Ray by value: it imports only the standard library, and pynvml where a driver is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from hybrid.pool.cards import parse_fake_gpus

_ENDED_DIRS_KEPT_SECONDS = 6 * 3600


def lease_folder(orchestrator_id: str) -> str:
    """Where the guards of one installation have their directories on a node."""
    return f"/tmp/hybrid-leases-{os.getuid()}/{orchestrator_id}"


class NodeAgent:
    """One per node and orchestrator. `folder` holds one directory per lease."""

    def __init__(self, orchestrator_id: str, node: str, address: str, guard_source: str) -> None:
        self.node, self.address = node, address
        self.folder = os.path.join(lease_folder(orchestrator_id), node)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self.guard_source = guard_source

    def inventory(self) -> dict[str, Any]:
        """The cards with their faults, and every guard of this node."""
        guards = self.guards()
        held = {
            card
            for lease_id, state in guards.items()
            if state["phase"] != "ended"
            for card in self._spec(lease_id).get("cards") or ()
        }
        fake = os.environ.get("HYBRID_FAKE_GPUS", "")
        cards = self._fake_cards(fake) if fake else nvml_cards(held)
        return {
            "cards": cards,
            "guards": {i: s["phase"] for i, s in guards.items() if s["phase"] != "ended"},
            "host": socket.gethostname(),
            "python": ".".join(map(str, sys.version_info[:3])),
        }

    def _fake_cards(self, text: str) -> list[dict[str, Any]]:
        return [
            {
                "uuid": card.uuid,
                "model": card.model,
                "memory_bytes": card.memory_bytes,
                "index": card.index,
                "unusable": None,
            }
            for card in parse_fake_gpus(text, self.node)
        ]

    # ------------------------------------------------------------------ guards

    def start(self, lease_id: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Start the guard of a lease here, once; its state."""
        where = self._dir(lease_id)
        if not os.path.exists(os.path.join(where, "spec.json")):
            os.makedirs(where, mode=0o700, exist_ok=True)
            _write(os.path.join(where, "guard.py"), self.guard_source)
            spec = {**spec, "node_ip": self.address, "python": spec["python"] or sys.executable}
            _write(os.path.join(where, "spec.json"), json.dumps(spec, sort_keys=True))
        state = self.state(lease_id)
        if state["phase"] == "absent":
            env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
            subprocess.run(
                [sys.executable, os.path.join(where, "guard.py"), where, "--daemon"],
                env=env,
                check=True,
                capture_output=True,
                timeout=30,
            )
        return self.state(lease_id)

    def state(self, lease_id: str) -> dict[str, Any]:
        """The guard's own state; ``absent`` where it never started, ``ended`` where it died
        without a word: then whatever of the lease still lives is killed here."""
        where = self._dir(lease_id)
        state = _read(os.path.join(where, "state.json"))
        if state is None:
            return {"phase": "absent"}
        if state["phase"] != "ended" and not _alive(int(state["pid"]), where):
            left = _kill_marked(f"HYBRID_GUARDED_LEASE={lease_id}".encode())
            ended = {"phase": "ended", "reason": "its guard died", "ended_at": time.time()}
            if left == 0:
                scratch = str(state.get("scratch") or "")
                if os.path.basename(scratch).startswith("hyb-"):
                    shutil.rmtree(scratch, ignore_errors=True)
                _write(os.path.join(where, "state.json"), json.dumps({**state, **ended}))
            return {**state, **ended, "processes_left": left}
        return state

    def renew(self, lease_id: str, expires_at: float) -> None:
        if os.path.exists(self._dir(lease_id)):
            _write(os.path.join(self._dir(lease_id), "expiry"), repr(expires_at))

    def stop(self, lease_id: str, reason: str) -> dict[str, Any]:
        """Ask the guard to end; its state after at most two seconds."""
        where = self._dir(lease_id)
        if not os.path.exists(where):
            return {"phase": "ended", "reason": "never started here", "processes_left": 0}
        _write(os.path.join(where, "stop"), reason)
        deadline = time.monotonic() + 2.0
        while True:
            state = self.state(lease_id)
            if state["phase"] == "absent":
                # The spec is written, the guard is not: it will find the stop file first.
                state = {"phase": "ended", "reason": "never started", "processes_left": 0}
            if state["phase"] == "ended" or time.monotonic() > deadline:
                return state
            time.sleep(0.05)

    def sweep(self, lease_id: str, attempt_id: str) -> int:
        """Have the guard kill what an attempt left running; how many are still there."""
        where = self._dir(lease_id)
        if self.state(lease_id)["phase"] != "up":
            return 0
        request = os.path.join(where, "sweep")
        _write(request, attempt_id)
        deadline = time.monotonic() + 3.0
        while os.path.exists(request) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not os.path.exists(request):
            return 0
        return int((_read(os.path.join(where, "swept.json")) or {}).get("left", 1))

    def guards(self) -> dict[str, dict[str, Any]]:
        """Every lease directory of this node; long ended ones are cleared away."""
        found = {}
        for lease_id in os.listdir(self.folder):
            state = self.state(lease_id)
            ended_at = float(state.get("ended_at", 0.0))
            if state["phase"] == "ended" and 0 < ended_at < time.time() - _ENDED_DIRS_KEPT_SECONDS:
                _remove(self._dir(lease_id))
                continue
            found[lease_id] = state
        return found

    def _dir(self, lease_id: str) -> str:
        if "/" in lease_id or lease_id.startswith("."):
            raise ValueError(f"not a lease id: {lease_id!r}")
        return os.path.join(self.folder, lease_id)

    def _spec(self, lease_id: str) -> dict[str, Any]:
        return _read(os.path.join(self._dir(lease_id), "spec.json")) or {}


def nvml_cards(held: set[str]) -> list[dict[str, Any]]:
    """The cards that the driver reports. One that cannot be read is listed as unusable with the
    reason and hides no other; one that is busy without a lease is unusable as long as it is."""
    try:
        import pynvml
    except ImportError:
        from ray._private.thirdparty import pynvml  # Ray brings its own copy
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []  # no driver: a CPU node
    try:
        count = pynvml.nvmlDeviceGetCount()
        return [_nvml_card(pynvml, index, held) for index in range(count)]
    finally:
        pynvml.nvmlShutdown()


def _nvml_card(nvml: Any, index: int, held: set[str]) -> dict[str, Any]:
    card: dict[str, Any] = {
        "uuid": f"unreadable-{index}",
        "model": "unknown",
        "memory_bytes": 0,
        "index": index,
        "unusable": None,
    }
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        card["uuid"] = _text(nvml.nvmlDeviceGetUUID(handle))
        card["model"] = _text(nvml.nvmlDeviceGetName(handle))
        card["memory_bytes"] = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        if card["uuid"] not in held:
            pids = [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            if pids:
                card["unusable"] = f"busy with process {pids[0]} that no lease explains"
    except nvml.NVMLError as error:
        card["unusable"] = f"NVML: {error}"
    return card


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _kill_marked(marker: bytes) -> int:
    """Kill every process that has the marker in its environment; how many are left."""
    for _ in range(50):
        found = [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _has(pid, marker)
        ]
        if not found:
            return 0
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return len(found)


def _has(pid: int, marker: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as handle:
            return marker in handle.read().split(b"\0")
    except OSError:
        return False


def _alive(pid: int, where: str) -> bool:
    """Is that process the guard of that directory?"""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as handle:
            return where.encode() in handle.read()
    except OSError:
        return False


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path) as handle:
            found: dict[str, Any] = json.load(handle)
            return found
    except FileNotFoundError:
        return None


def _write(path: str, text: str) -> None:
    with open(path + ".new", "w") as handle:
        handle.write(text)
    os.replace(path + ".new", path)


def _remove(folder: str) -> None:
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))
    with contextlib.suppress(OSError):
        os.rmdir(folder)
