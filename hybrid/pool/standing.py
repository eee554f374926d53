"""The standing Ray head that `hybrid up` starts and `hybrid down` ends."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from hybrid.lease.guard import PORT_FLAGS, claim_ports, kill
from hybrid.lease.spec import MINIMUM_OBJECT_STORE_BYTES
from hybrid.pool.cards import parse_fake_gpus

START_TIMEOUT_SECONDS = 90.0
#: Ray takes 127.0.0.1 for "find out my address yourself"; any other loopback address is kept.
LOOPBACK_IP = "127.0.0.2"


class HeadFailed(Exception):
    """The standing Ray head did not come up; the text has the last lines of its log."""


@dataclass(frozen=True, slots=True)
class StandingHead:
    """What must be known to use and to end the head. Kept in `<home>/pool.json` (mode 0600)."""

    address: str
    token: str
    pid: int
    created: float
    scratch: str

    def alive(self) -> bool:
        """Is the very process that we started still there (and not a reuse of its pid)?"""
        try:
            return bool(abs(psutil.Process(self.pid).create_time() - self.created) < 1.0)
        except psutil.NoSuchProcess:
            return False


def read_head(home: Path) -> StandingHead | None:
    try:
        return StandingHead(**json.loads((home / "pool.json").read_text()))
    except FileNotFoundError:
        return None


def start_head(
    home: Path, node_ip: str = LOOPBACK_IP, fake_gpus: str = "", num_cpus: int | None = None
) -> StandingHead:
    """Start `ray start --head` detached and wait until it answers. Raises `HeadFailed`.

    With fake cards the head advertises one custom resource per card and no GPUs: nothing that
    asks Ray for a real GPU lands on them.
    """
    cards = parse_fake_gpus(fake_gpus, node_ip)
    base, lock = claim_ports()
    token, scratch = secrets.token_hex(32), tempfile.mkdtemp(prefix="hyh-", dir="/tmp")
    cpus = num_cpus or max(2, os.cpu_count() or 1)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--disable-usage-stats", "--include-dashboard=false", f"--temp-dir={scratch}"]
    command += [f"--node-ip-address={node_ip}", f"--port={base}", f"--num-cpus={cpus}"]
    command += [f"--object-store-memory={MINIMUM_OBJECT_STORE_BYTES}"]
    command += [f"--ray-client-server-port={base + 8}", f"--dashboard-port={base + 1}"]
    command += [f"--{name}={base + 2 + i}" for i, name in enumerate(PORT_FLAGS)]
    command += [f"--min-worker-port={base + 20}", f"--max-worker-port={base + 199}"]
    if cards:
        advertised = {f"gpu:{card.uuid}": 1 for card in cards}
        command += ["--num-gpus=0", f"--resources={json.dumps(advertised)}"]
    log = home / "ray-head.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=head_environment(token, fake_gpus, base),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
            cwd=scratch,
        )
    created = psutil.Process(process.pid).create_time()
    lock.close()
    head = StandingHead(f"{node_ip}:{base}", token, process.pid, created, scratch)
    _save(home, head)
    _wait_until_up(process, log)
    return head


def head_environment(token: str, fake_gpus: str, base: int) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "HYBRID_"))}
    return {
        **clean,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "DASHBOARD_METRIC_PORT": str(base + 9),
        "AUTOSCALER_METRIC_PORT": str(base + 10),
        **({"HYBRID_FAKE_GPUS": fake_gpus} if fake_gpus else {}),
    }


def _wait_until_up(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    start = log.stat().st_size
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        if "--block" in text[-4000:] and "Ray runtime started" in text[-6000:]:
            return
        if process.poll() is not None:
            raise HeadFailed(f"ray start ended with {process.returncode}: {text[-800:]}")
        time.sleep(0.1)
    raise HeadFailed(f"no answer in {START_TIMEOUT_SECONDS:g} s ({start} bytes in {log})")


def stop_head(home: Path) -> bool:
    """End exactly the head that `start_head` started, with all that it started. True if it was
    there."""
    head = read_head(home)
    if head is None:
        return False
    was_alive = head.alive()
    if was_alive:
        root = psutil.Process(head.pid)
        family = [root, *root.children(recursive=True)]
        for process in family:
            kill(process.pid)
        psutil.wait_procs(family, timeout=10)
    subprocess.run(["rm", "-rf", head.scratch], check=False)
    (home / "pool.json").unlink(missing_ok=True)
    return was_alive


def _save(home: Path, head: StandingHead) -> None:
    path = home / "pool.json"
    descriptor = os.open(path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        json.dump(asdict(head), handle)
    path.with_suffix(".new").replace(path)
