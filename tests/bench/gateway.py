"""Gateway and controller beside a real Ray dashboard: submit, upload, list, memory."""

from __future__ import annotations

import http.client
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil
import requests
from ray.job_submission import JobSubmissionClient

from hybrid.lease.guard import PORT_FLAGS, claim_ports
from tests.bench.figures import Figure, quantile
from tests.installation import BIN, POLICY, Hybrid, free_port

UPLOAD_BYTES = 90 * 1024 * 1024
CLIENTS = 16
RATE_SECONDS = 8.0
ROUNDS = 6


@dataclass
class RealRay:
    """A Ray head with dashboard, as users start it."""

    url: str
    process: psutil.Process
    scratch: str

    def end(self) -> None:
        family = [self.process, *self.process.children(recursive=True)]
        for member in family:
            member.kill()
        psutil.wait_procs(family, timeout=10)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def dashboard(self) -> psutil.Process:
        return next(
            p for p in self.process.children(recursive=True) if "dashboard.py" in str(p.cmdline())
        )


def start_ray() -> tuple[RealRay, float]:
    """A head, and the seconds until its dashboard lists its node."""
    base, lock = claim_ports()
    scratch = tempfile.mkdtemp(prefix="hyb-bench-", dir="/tmp")
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--disable-usage-stats", f"--temp-dir={scratch}", "--node-ip-address=127.0.0.4"]
    command += [f"--port={base}", "--dashboard-host=127.0.0.4", f"--dashboard-port={base + 1}"]
    command += [f"--ray-client-server-port={base + 8}", "--num-cpus=2", "--num-gpus=1"]
    command += ["--object-store-memory=80000000"]
    command += [f"--{name}={base + 2 + i}" for i, name in enumerate(PORT_FLAGS)]
    command += [f"--min-worker-port={base + 20}", f"--max-worker-port={base + 199}"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    env = {**clean, "DASHBOARD_METRIC_PORT": str(base + 9), "PATH": f"{BIN}:{clean['PATH']}",
           "AUTOSCALER_METRIC_PORT": str(base + 10)}  # fmt: skip
    start = time.monotonic()
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, pass_fds=(lock.fileno(),),
    )  # fmt: skip
    lock.close()
    url = f"http://127.0.0.4:{base + 1}"
    while True:
        try:
            found = requests.get(f"{url}/api/v0/nodes", timeout=5).json()
            if found["data"]["result"]["total"]:
                break
        except (requests.RequestException, ValueError, KeyError):
            pass
        time.sleep(0.05)
    return RealRay(url, psutil.Process(process.pid), scratch), time.monotonic() - start


def run() -> list[Figure]:
    home = Path(tempfile.mkdtemp(prefix="hb-bench-", dir="/tmp"))
    (home / "policies").mkdir()
    (home / "policies" / "test.toml").write_text(POLICY.format(max_wait=10**7, warm=600))
    hybrid = Hybrid(home=home, port=free_port(), cloud_dir=home / "cloud")
    ray, head_seconds = start_ray()
    try:
        hybrid.up("--fake-gpus", "T4:1", "--policy", "test")
        return [
            *_latency(hybrid, ray, head_seconds),
            *_upload(hybrid, ray),
            *_queue(hybrid, ray),
        ]
    finally:
        ray.end()
        hybrid.down()
        shutil.rmtree(home, ignore_errors=True)


def _one_job(url: str) -> float:
    """Seconds from submit to SUCCEEDED, by the SDK, polled every 20 ms."""
    client = JobSubmissionClient(url)
    start = time.monotonic()
    job = client.submit_job(entrypoint="true", entrypoint_num_gpus=1)
    while not (status := client.get_job_status(job)).is_terminal():
        time.sleep(0.02)
    assert status == "SUCCEEDED", client.get_job_info(job).message
    return time.monotonic() - start


def _latency(hybrid: Hybrid, ray: RealRay, head_seconds: float) -> list[Figure]:
    cold = _one_job(hybrid.url)
    steps = _steps_of_the_first_job(hybrid)
    _one_job(ray.url)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(_one_job(ray.url))
        ours.append(_one_job(hybrid.url))
    warm, direct = quantile(ours, 0.5), quantile(theirs, 0.5)
    peer = "the same job sent to Ray's dashboard"
    head = "a Ray head alone, until it lists its node"
    own = steps["lease requested"] + steps["lease ready"] - head_seconds
    return [
        Figure("submit to SUCCEEDED, warm lease", warm, "s", peer, direct),
        Figure("submit to SUCCEEDED, cold lease", cold, "s", peer, direct),
        Figure("cold lease: submit to the lease's request", steps["lease requested"], "s"),
        Figure("cold lease: request to its Ray cluster past the gate", steps["lease ready"], "s",
               head, head_seconds),
        Figure("cold lease: first job taken by the new cluster", steps["accepted"], "s"),
        Figure("cold lease: from there to its end", steps["succeeded"], "s"),
        Figure("cold lease: our own share (to the gate, less a Ray head alone)", own, "s"),
    ]  # fmt: skip


def _steps_of_the_first_job(hybrid: Hybrid) -> dict[str, float]:
    """The seconds of each step of the only job so far, from the journal."""
    events = requests.get(f"{hybrid.url}/api/hybrid/v1/events", timeout=30).json()
    at = {(e["entity"], e["to_state"]): datetime.fromisoformat(e["at"]) for e in events}
    moments = [at[key] for key in (("job", "queued"), ("lease", "requested"), ("lease", "ready"),
                                   ("job", "running"), ("job", "succeeded"))]  # fmt: skip
    names = ("lease requested", "lease ready", "accepted", "succeeded")
    gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(moments)]
    return dict(zip(names, gaps, strict=True))


def _upload(hybrid: Hybrid, ray: RealRay) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "package.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data", os.urandom(UPLOAD_BYTES))
        gateway = hybrid.gateway()
        assert gateway is not None
        before = gateway.memory_info().rss
        seen = [before]
        stop = threading.Event()

        def watch() -> None:
            while not stop.is_set():
                seen.append(gateway.memory_info().rss)
                time.sleep(0.005)

        watcher = threading.Thread(target=watch)
        watcher.start()
        ours = min(_put(hybrid.url, path) for _ in range(3))
        stop.set()
        watcher.join()
        theirs = min(_put(ray.url, path) for _ in range(3))
    grown = (max(seen) - before) / 2**20
    return [
        Figure("90 MiB package upload", ours, "s", "Ray's dashboard", theirs),
        Figure("90 MiB package upload: growth of the gateway's memory", grown, "MiB"),
    ]


def _put(url: str, path: Path) -> float:
    name = f"_ray_pkg_{uuid.uuid4().hex[:16]}.zip"
    start = time.monotonic()
    with path.open("rb") as body:
        answer = requests.put(f"{url}/api/packages/gcs/{name}", data=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return time.monotonic() - start


def _rate(url: str, done: Callable[[int], bool]) -> float:
    """POSTs per second from `CLIENTS` clients with keep-alive; jobs that wait for a card."""
    host = url.removeprefix("http://")
    counts = [0] * CLIENTS
    begin = time.monotonic()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection(host, timeout=60)
        body = b'{"entrypoint": "true", "entrypoint_num_gpus": 1}'
        while time.monotonic() - begin < RATE_SECONDS and not done(sum(counts)):
            connection.request("POST", "/api/jobs/", body)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            counts[number] += 1

    threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - begin)


def _queue(hybrid: Hybrid, ray: RealRay) -> list[Figure]:
    gateway = hybrid.gateway()
    assert gateway is not None
    idle = gateway.memory_info().rss / 2**20
    holder = hybrid.client.submit_job(entrypoint="sleep 3000", entrypoint_num_gpus=1)
    hybrid.wait(holder, "RUNNING")
    ours = _rate(hybrid.url, lambda made: made >= 1000)
    queued = len(hybrid.client.list_jobs())
    time.sleep(3)
    times = []
    for _ in range(60):
        start = time.monotonic()
        assert requests.get(f"{hybrid.url}/api/jobs/", timeout=30).status_code == 200
        times.append(time.monotonic() - start)
    ticks = []
    for _ in range(20):
        status = requests.get(f"{hybrid.url}/api/hybrid/v1/status", timeout=30).json()
        ticks.append(float(status["tick_seconds"]))
        time.sleep(0.5)
    theirs = _rate(ray.url, lambda _made: False)
    return [
        Figure("POST /api/jobs/, 16 clients", ours, "1/s", "Ray's dashboard", theirs),
        Figure(f"GET /api/jobs/ with {queued} jobs, p95", quantile(times, 0.95) * 1e3, "ms"),
        Figure(f"whole round of the controller with {queued} jobs, p95",
               quantile(ticks, 0.95) * 1e3, "ms"),
        Figure("gateway + controller, idle", idle, "MiB"),
        Figure(f"gateway + controller, {queued} jobs", gateway.memory_info().rss / 2**20, "MiB"),
    ]  # fmt: skip
