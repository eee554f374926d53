"""`hybrid demo`: the whole path on one machine, checked as it goes.

Everything lives in a temporary home; the jobs are submitted with the unmodified `ray` CLI.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil

from hybrid.cli.client import Client, CliError
from hybrid.cli.output import duration, money

FAKE_GPUS = "A100:2,T4:2"
TIME_LIMIT_SECONDS = 220.0
POLICY = """\
# The demo's policy: impatient, so that overflow bursts while you watch.
[burst]
strategy = "constant-wait"
settle_seconds = 2

[burst.params]
max_wait_seconds = 6

[leases]
warm_seconds = 20
"""
TRAIN = """\
import ray
from model import describe

ray.init()

@ray.remote(num_gpus=1)
def cards():
    import os
    return os.environ["CUDA_VISIBLE_DEVICES"]

print(describe(), ray.get([cards.remote(), cards.remote()]))
"""
MODEL = 'def describe():\n    return "a two-card job; its tasks see"\n'


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One submission: its flags for `ray job submit`, and how it must end."""

    name: str
    flags: tuple[str, ...]
    entrypoint: tuple[str, ...]
    ends: str = "succeeded"


def batch(code: Path) -> list[DemoJob]:
    """Short, long, two cards with code of its own, one that fails, and overflow."""
    one = ("--entrypoint-num-gpus", "1")
    two = json.dumps({"hybrid.gpus": "2", "hybrid.gpu_model": "T4", "hybrid.runtime": "10s"})
    long = json.dumps({"hybrid.gpus": "2", "hybrid.gpu_model": "A100", "hybrid.runtime": "50s"})
    return [
        DemoJob("long", ("--metadata-json", long), ("sleep", "50")),
        DemoJob(
            "two-cards",
            ("--working-dir", str(code), "--metadata-json", two),
            ("python", "train.py"),
        ),
        DemoJob("short", (), ("echo", "no card needed")),
        DemoJob("fails", (), ("python", "-c", "raise SystemExit(3)"), "failed"),
        DemoJob(
            "overflow",
            (*one, "--metadata-json", json.dumps({"hybrid.gpu_model": "A100"})),
            ("python", "-c", "import os; print('ran on', os.environ['CUDA_VISIBLE_DEVICES'])"),
        ),
    ]


def run(keep: bool) -> int:
    """0 only if every job ended as it must, the bill adds up and nothing is left."""
    home = Path(tempfile.mkdtemp(prefix="hybrid-demo-"))
    started = time.monotonic()
    try:
        demo = Demo(home)
        problems = demo.play()
        if keep and not problems:
            print(f"\nLeft running as asked: {demo.url}")
            print(f"  export RAY_API_SERVER_ADDRESS={demo.url} HYBRID_HOME={home}")
            print(f"  export HYBRID_LOCAL_CLOUD_DIR={home / 'cloud'}")
            print("  end it with: hybrid down")
            return 0
        problems += demo.end()
    except (CliError, subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        problems = [f"{type(error).__name__}: {error}", *demo.end()]
        output = getattr(error, "stderr", None)
        if output:
            problems.append(str(output)[-1500:])
    print(f"\n{duration(time.monotonic() - started)} in all.", end=" ")
    if problems:
        print("What went wrong:")
        for problem in problems:
            print(f"  - {problem}")
        print(f"  (state kept in {home})")
        return 1
    shutil.rmtree(home, ignore_errors=True)
    print("Every job ended as it must, the bill adds up, nothing is left.")
    return 0


class Demo:
    """One run in one home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = Client(self.url, "")
        self.jobs: Sequence[DemoJob] = ()
        (home / "policies").mkdir()
        (home / "policies" / "demo.toml").write_text(POLICY)
        self.code = home / "code"
        self.code.mkdir()
        (self.code / "train.py").write_text(TRAIN)
        (self.code / "model.py").write_text(MODEL)

    def play(self) -> list[str]:
        _title(f"hybrid up --fake-gpus {FAKE_GPUS}")
        self._command("hybrid", "up", "--fake-gpus", FAKE_GPUS, "--policy", "demo",
                      "--port", str(self.port))  # fmt: skip
        self.jobs = batch(self.code)
        _title("submitting with the unmodified ray CLI")
        self._submit()
        _title("the queue")
        problems = self._watch()
        self._tell()
        return problems + self._check_bill()

    def _submit(self) -> None:
        """The first alone, so that it holds its cards before the overflow comes."""
        first, *others = self.jobs
        for group in ([first], others):
            running = [(job, self._start_submit(job)) for job in group]
            for job, process in running:
                _, errors = process.communicate(timeout=60)
                if process.returncode:
                    raise CliError(f"ray job submit of {job.name} failed: {errors[-800:]}")

    def _start_submit(self, job: DemoJob) -> subprocess.Popen[str]:
        command = ["ray", "job", "submit", "--no-wait", "--submission-id", job.name, *job.flags]
        command += ["--", *job.entrypoint]
        shown = " ".join(part if " " not in part else repr(part) for part in command)
        print(f"$ {shown}".replace(str(self.home), "…"))
        return subprocess.Popen(
            [str(_program("ray")), *command[1:]],
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _watch(self) -> list[str]:
        """A line whenever a job moves, until all have ended."""
        deadline = time.monotonic() + TIME_LIMIT_SECONDS
        shown: dict[str, str] = {}
        while True:
            jobs = {job["id"]: job for job in self.client.get("/jobs")}
            for name, job in sorted(jobs.items()):
                line = f"{job['state']:<9} {job['place'] or '-':<44.44} {job['message']}"
                if shown.get(name) != line:
                    shown[name] = line
                    print(f"{time.strftime('%H:%M:%S')}  {name:<10} {line[:150]}", flush=True)
            over = [
                job for job in jobs.values() if job["state"] in ("succeeded", "failed", "stopped")
            ]
            if len(over) == len(self.jobs):
                return self._judge(jobs)
            if time.monotonic() > deadline:
                return [f"not every job ended in {TIME_LIMIT_SECONDS:g} s", *self._judge(jobs)]
            time.sleep(0.3)

    def _judge(self, jobs: Mapping[str, Any]) -> list[str]:
        problems = [
            f"{job.name} is {jobs[job.name]['state']}, not {job.ends}: {jobs[job.name]['message']}"
            for job in self.jobs
            if jobs[job.name]["state"] != job.ends
        ]
        place = jobs["overflow"]["place"] or ""
        if not place.startswith("local/"):
            problems.append(f"the overflow job ran on {place}, not on a rented machine")
        logs = self.client.logs("two-cards")
        if "a two-card job" not in logs:
            problems.append(f"the log of two-cards lacks what it printed: {logs[-300:]}")
        return problems

    def _tell(self) -> None:
        _title("hybrid job logs two-cards")
        print(self.client.logs("two-cards"))
        _title("hybrid job why overflow")
        print(self._command("hybrid", "job", "why", "overflow"))
        _title("hybrid lease ls --all")
        print(self._command("hybrid", "lease", "ls", "--all"))
        _title("hybrid report cost --by job")
        print(self._command("hybrid", "report", "cost", "--by", "job"))

    def _check_bill(self) -> list[str]:
        """After the last lease is gone: lines sum to leases, leases to the whole."""
        deadline = time.monotonic() + 60
        while self.client.get("/leases"):
            if time.monotonic() > deadline:
                return [f"leases are still open: {self.client.get('/leases')}"]
            for lease in self.client.get("/leases"):
                if lease["state"] == "ready":
                    self.client.post(f"/leases/{lease['id']}/release")
            time.sleep(0.3)
        lines = self.client.get("/ledger")
        report = self.client.get("/report/cost", by="lease")
        whole = sum((Decimal(line["amount"]) for line in lines), Decimal(0))
        rows = sum((Decimal(row["total"]) for row in report["rows"]), Decimal(0))
        print(f"The ledger has {len(lines)} lines; together {money(whole, 9)} USD.")
        return [] if whole == rows else [f"the lines sum to {whole}, the report to {rows}"]

    def end(self) -> list[str]:
        """Bring it down and look for anything left."""
        _title("hybrid down; hybrid leaks")
        try:
            self._command("hybrid", "down")
            leaks = self._command("hybrid", "leaks")
        except subprocess.CalledProcessError as error:
            return [f"{' '.join(map(str, error.cmd[1:]))}: {error.stderr[-800:]}"]
        problems = [f"leaked: {leaks}"] if leaks.strip() else []
        left = [
            f"{process.pid} {' '.join(process.info['cmdline'])[:120]}"
            for process in psutil.process_iter(["cmdline"])
            if str(self.home) in " ".join(process.info["cmdline"] or [])
        ]
        print("no leaks, no processes" if not (problems or left) else "")
        return problems + [f"still running: {line}" for line in left]

    def _command(self, *command: str) -> str:
        done = subprocess.run(
            [str(_program(command[0])), *command[1:]],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=180,
        )
        return done.stdout

    def _environment(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "HYBRID_"))}
        return {
            **clean,
            "HYBRID_HOME": str(self.home),
            "HYBRID_LOCAL_CLOUD_DIR": str(self.home / "cloud"),
            "HYBRID_ADDRESS": self.url,
            "RAY_API_SERVER_ADDRESS": self.url,
        }


def _program(name: str) -> Path:
    """The one of our own environment, whatever PATH says."""
    return Path(sys.executable).parent / name


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _title(text: str) -> None:
    print(f"\n── {text}", flush=True)
