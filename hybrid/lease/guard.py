"""The guard of one lease on one machine. STANDARD LIBRARY ONLY: it is shipped as a single file.

Usage: python guard.py LEASE_DIR [--daemon]   (reads LEASE_DIR/spec.json, `hybrid.lease.spec`)

It starts the machine's part of the lease's private Ray cluster on exactly the given cards, and
ends it, with every process that came of it, when the lease's fence passes, when LEASE_DIR/stop
appears, on SIGTERM, or when Ray ends. LEASE_DIR/expiry moves the fence. LEASE_DIR/state.json
always says where it stands. It needs nobody: whoever started it may die.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO, Any

PORT_DIR = "/tmp/hybrid-ports"
PORT_BLOCKS = range(20000, 31800, 200)
FIXED_PORTS = 11
PORT_FLAGS = (
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
    "node-manager-port",
    "object-manager-port",
)
POLL_SECONDS = 0.1
NAMESPACE = ("--pid", "--fork", "--kill-child", "--mount-proc")


def main(lease_dir: str, daemon: bool = False) -> int:
    if daemon and not detach():
        return 0
    lock = open(os.path.join(lease_dir, "guard.lock"), "a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another guard of this lease lives
    if read_json(os.path.join(lease_dir, "state.json")).get("phase") == "ended":
        return 0  # a lease is lived once
    Guard(lease_dir).run()
    return 0


def detach() -> bool:
    """Leave the process group, session and parentage of whoever started us. False in the parent.

    Ray kills the children and the process group of a worker that ends; a guard outlives it.
    """
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.closerange(3, 1024)
    return True


class Guard:
    def __init__(self, lease_dir: str) -> None:
        self.dir = lease_dir
        self.spec = read_json(os.path.join(lease_dir, "spec.json"))
        self.state: dict[str, Any] = {
            "lease_id": self.spec["lease_id"],
            "phase": "starting",
            "pid": os.getpid(),
        }
        self.child: subprocess.Popen[bytes] | None = None
        self.scratch: str | None = None
        self.ports: IO[str] | None = None
        self.asked_to_end = ""
        self.expiry_text: str | None = None
        self.deadline = 0.0

    def run(self) -> None:
        # Every process that loses its parent becomes our child, so that none escapes.
        ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        reason = "the guard failed"
        try:
            self._read_fence()
            self._start()
            reason = self._watch()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        finally:
            self._end(reason)

    def _on_signal(self, number: int, _frame: object) -> None:
        self.asked_to_end = "signal %d" % number

    # -- start

    def _start(self) -> None:
        base, self.ports = claim_ports()
        self.scratch = tempfile.mkdtemp(prefix="hyb-", dir="/tmp")
        os.chmod(self.scratch, 0o755)
        wanted = "HYBRID_GUARD_NO_NAMESPACE" not in self.spec["env"]
        prefix, isolation = isolation_prefix(wanted)
        ip, head = self.spec["node_ip"], self.spec["head"]
        self.state.update(isolation=isolation, port_base=base, started_at=time.time())
        self.state["scratch"] = self.scratch
        if head:
            self.state["dashboard_url"] = "http://%s:%d" % (ip, base + 1)
            self.state["gcs_address"] = "%s:%d" % (ip, base)
        self._save()
        with open(os.path.join(self.dir, "ray.log"), "ab") as log:
            self.child = subprocess.Popen(
                [*prefix, *self._ray_command(base)],
                env=self._environment(base),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.scratch,
                preexec_fn=die_with_parent,
            )

    def _ray_command(self, base: int) -> list[str]:
        spec = self.spec
        command = [spec["python"], "-m", "ray.scripts.scripts", "start", "--block"]
        command += ["--disable-usage-stats", "--node-ip-address=" + spec["node_ip"]]
        command += ["--num-gpus=%d" % spec["gpus"]]
        command += ["--num-cpus=%d" % max(1, math.ceil(spec["cpus"]))]
        command += ["--object-store-memory=%d" % spec["object_store_bytes"]]
        if spec["memory_bytes"]:
            command += ["--memory=%d" % spec["memory_bytes"]]
        if spec["resources"]:
            command += ["--resources=" + json.dumps(spec["resources"])]
        if spec["head"]:
            command += ["--head", "--port=%d" % base, "--temp-dir=%s" % self.scratch]
            command += ["--dashboard-host=" + spec["node_ip"], "--dashboard-port=%d" % (base + 1)]
            command += ["--ray-client-server-port=%d" % (base + 8)]
        else:
            command += ["--address=" + spec["head_address"]]
        command += ["--%s=%d" % (name, base + 2 + i) for i, name in enumerate(PORT_FLAGS)]
        return [
            *command,
            "--min-worker-port=%d" % (base + 20),
            "--max-worker-port=%d" % (base + 199),
        ]

    def _environment(self, base: int) -> dict[str, str]:
        spec = self.spec
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("RAY_", "HYBRID_")) and k != "PYTHONPATH"
        }
        # A job's `python` is the one that has Ray, as in an activated environment.
        folder = os.path.dirname(spec["python"])
        env["PATH"] = folder + os.pathsep + env.get("PATH", os.defpath)
        env.update(spec["env"])
        if spec["cards"] is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(spec["cards"])
        env.update(
            HYBRID_GUARDED_LEASE=spec["lease_id"],
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN=spec["token"],
            RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="1",
            RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="0",
            RAY_DASHBOARD_METRICS_PORT=str(base + 9),
            DASHBOARD_METRIC_PORT=str(base + 9),
            AUTOSCALER_METRIC_PORT=str(base + 10),
        )
        return env

    # -- watch

    def _watch(self) -> str:
        stop = os.path.join(self.dir, "stop")
        while True:
            if self.asked_to_end:
                return self.asked_to_end
            if os.path.exists(stop):
                return "stopped: " + open(stop).read().strip()
            code = None if self.child is None else self.child.poll()
            if code is not None:
                return "ray ended (exit %d): %s" % (code, self._last_log_line())
            self._read_fence()
            if boot_clock() >= self.deadline:
                return "the fence of the lease has passed"
            self._sweep_if_asked()
            if self.state["phase"] == "starting" and self._answers():
                self.state.update(phase="up", up_at=time.time())
                self._save()
            time.sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        if not self.spec["head"]:
            return True
        try:
            address = (self.spec["node_ip"], self.state["port_base"] + 1)
            socket.create_connection(address, timeout=0.2).close()
            return True
        except OSError:
            return False

    def _read_fence(self) -> None:
        """Turn a new wall-clock expiry into a deadline that no clock jump moves."""
        try:
            with open(os.path.join(self.dir, "expiry")) as handle:
                text = handle.read()
        except FileNotFoundError:
            text = repr(self.spec["expires_at"])
        if text != self.expiry_text:
            self.expiry_text = text
            self.deadline = boot_clock() + float(text) - time.time()

    def _sweep_if_asked(self) -> None:
        """LEASE_DIR/sweep names an attempt: kill what it left running, answer in swept.json."""
        path = os.path.join(self.dir, "sweep")
        if not os.path.exists(path):
            return
        attempt = open(path).read().strip()
        marker = ("HYBRID_ATTEMPT_ID=" + attempt).encode()
        left = [p for p in descendants() if has_environment(p, marker)]
        for pid in left:
            kill(pid)
        write_json(os.path.join(self.dir, "swept.json"), {"attempt": attempt, "left": len(left)})
        if not left:
            os.unlink(path)

    def _last_log_line(self) -> str:
        try:
            with open(os.path.join(self.dir, "ray.log"), "rb") as handle:
                handle.seek(max(0, os.path.getsize(handle.name) - 4000))
                lines = handle.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        lines = [line.strip() for line in lines if line.strip()]
        return lines[-1] if lines else ""

    # -- end

    def _end(self, reason: str) -> None:
        if self.child is not None and self.child.poll() is None:
            kill(self.child.pid)
        left = end_descendants()
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)
        self.state.update(phase="ended", reason=reason, ended_at=time.time(), processes_left=left)
        self._save()

    def _save(self) -> None:
        write_json(os.path.join(self.dir, "state.json"), self.state)


def die_with_parent() -> None:
    """Run in a child before its program: it is killed when we are, however we end."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def claim_ports() -> tuple[int, IO[str]]:
    """A block of ports that nobody on this machine uses, held until we die."""
    os.makedirs(PORT_DIR, exist_ok=True)
    for base in PORT_BLOCKS:
        handle = open(os.path.join(PORT_DIR, str(base)), "a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            continue
        if all(can_bind(base + offset) for offset in range(FIXED_PORTS)):
            return base, handle
        handle.close()
    raise RuntimeError("no free block of 200 ports in %d-%d" % (PORT_BLOCKS[0], 32000))


def can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def isolation_prefix(use_namespaces: bool) -> tuple[list[str], str]:
    """A command prefix for a PID namespace of its own, and the name of what it gives."""
    ways: list[tuple[list[str], str]] = []
    if os.geteuid() == 0:
        ways.append((["unshare", *NAMESPACE], "pid-namespace"))
    user = ["unshare", "--user", "--map-current-user", *NAMESPACE]
    ways.append((user, "user-pid-namespace"))
    if use_namespaces:
        for prefix, name in ways:
            try:
                if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
                    return list(prefix), name
            except OSError:
                break
    return [], "subreaper"


def boot_clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def descendants() -> list[int]:
    """Every living process below us, from /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as handle:
                    fields = handle.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    queue = [os.getpid()]
    while queue:
        for pid in children.get(queue.pop(), ()):
            found.append(pid)
            queue.append(pid)
    return found


def end_descendants() -> int:
    """Kill until nothing is left (what a dying process forks is killed too); the number left."""
    for _ in range(100):
        living = descendants()
        for pid in living:
            kill(pid)
        reap()
        if not living:
            return 0
        time.sleep(0.02)
    return len(descendants())


def reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def has_environment(pid: int, marker: bytes) -> bool:
    try:
        with open("/proc/%d/environ" % pid, "rb") as handle:
            return marker in handle.read().split(b"\0")
    except OSError:
        return False


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def read_json(path: str) -> dict[str, Any]:
    try:
        with open(path) as handle:
            found: dict[str, Any] = json.load(handle)
            return found
    except FileNotFoundError:
        return {}


def write_json(path: str, value: Mapping[str, Any]) -> None:
    with open(path + ".new", "w") as handle:
        json.dump(value, handle)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--daemon" in sys.argv))
