"""A whole Hybrid on this machine: standing Ray head with fake cards, gateway, controller and the
`local` cloud, started with the real CLI and driven with the unmodified `ray` CLI and SDK."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from ray.job_submission import JobSubmissionClient

BIN = Path(sys.executable).parent

POLICY = """
[burst]
strategy = "constant-wait"
settle_seconds = 1

[burst.params]
max_wait_seconds = {max_wait}

[leases]
warm_seconds = {warm}

[jobs]
impossible_demand_seconds = 20
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Hybrid:
    """One installation in a temporary home."""

    home: Path
    port: int
    cloud_dir: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> JobSubmissionClient:
        return JobSubmissionClient(self.url)

    def environ(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "HYBRID_"))}
        return {
            **clean,
            "HYBRID_HOME": str(self.home),
            "HYBRID_LOCAL_CLOUD_DIR": str(self.cloud_dir),
            "HYBRID_ADDRESS": self.url,
            "RAY_API_SERVER_ADDRESS": self.url,
            "NO_COLOR": "1",
            **self.env,
        }

    def run(
        self, *command: str, timeout: float = 120, check: bool = True, **extra_env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the venv's programs (`hybrid`, `ray`) as a user would."""
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            env={**self.environ(), **extra_env},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"{' '.join(command)} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def up(self, *flags: str, **extra_env: str) -> None:
        self.run("hybrid", "up", "--port", str(self.port), *flags, **extra_env)

    def down(self) -> None:
        self.run("hybrid", "down", check=False, timeout=180)

    def gateway(self) -> psutil.Process | None:
        """The process of gateway and controller, if it lives."""
        try:
            record = json.loads((self.home / "up.json").read_text())
            process = psutil.Process(record["pid"])
            return process if process.status() != psutil.STATUS_ZOMBIE else None
        except (FileNotFoundError, psutil.NoSuchProcess):
            return None

    def kill_gateway(self) -> None:
        """As if the machine had lost it: no signal handler runs, no lease is told."""
        process = self.gateway()
        if process is not None:
            process.kill()
            process.wait(10)

    def wait_until_dead(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self.gateway() is not None:
            assert time.monotonic() < deadline, f"it did not die\n{self.serve_log()}"
            time.sleep(0.1)

    def wait(self, job_id: str, *states: str, timeout: float = 120) -> str:
        """Until the job's Ray status is one of `states`; the status."""
        client = self.client
        deadline = time.monotonic() + timeout
        while True:
            status = str(client.get_job_status(job_id).value)
            if status in states:
                return status
            if time.monotonic() > deadline or status in {"FAILED", "SUCCEEDED", "STOPPED"}:
                info = client.get_job_info(job_id)
                raise AssertionError(
                    f"{job_id} is {status}, not {states}: {info.message}\n"
                    f"{client.get_job_logs(job_id)}\n{self.serve_log()}"
                )
            time.sleep(0.2)

    def ended(self, job_id: str, timeout: float = 120) -> str:
        return self.wait(job_id, "SUCCEEDED", "FAILED", "STOPPED", timeout=timeout)

    def serve_log(self) -> str:
        log = self.home / "serve.log"
        return log.read_text()[-6000:] if log.exists() else "(no serve.log)"


def processes_of(*folders: Path) -> list[str]:
    """Command lines of living processes that mention one of the folders."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if any(str(folder) in line for folder in folders) and process.pid != os.getpid():
            found.append(f"{process.pid} {line[:160]}")
    return found
