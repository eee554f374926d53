"""Pool leases on a real two-node standing cluster: isolation, gangs, teardown, fences, restarts.

Two raylets live on one machine by loopback aliases. The head has fake cards that it advertises
one by one; the second node is a plain `ray start` with `--num-gpus`, whose cards Ray itself
hands out.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from hybrid.core.model import Gang, LeaseKind, NodeShare
from hybrid.lease.cluster import RayClusterClient
from hybrid.lease.guard import PORT_FLAGS, claim_ports
from hybrid.pool.agent import lease_folder
from hybrid.pool.backend import PoolBackend
from hybrid.pool.client import PoolClient
from hybrid.pool.standing import StandingHead, start_head, stop_head
from hybrid.ports import Endpoint, Health, LeaseTask, LeaseUnavailable, PoolNode
from hybrid.service.deps import SystemClock

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

PLAIN_IP = "127.0.0.9"


@dataclass
class Pool:
    home: Path
    head: StandingHead
    plain: psutil.Process
    orchestrator: str


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    home = Path(tempfile.mkdtemp(prefix="hb-pool-", dir="/tmp"))
    head = start_head(home, fake_gpus="A100:2,T4:1", num_cpus=4)
    plain = psutil.Process(_join(home, head).pid)
    yield Pool(home, head, plain, f"test-{os.getpid()}")
    family = [plain, *plain.children(recursive=True)]
    for member in family:
        member.kill()
    psutil.wait_procs(family, timeout=10)
    stop_head(home)
    subprocess.run(["rm", "-rf", str(home), lease_folder(f"test-{os.getpid()}")], check=True)


def _join(home: Path, head: StandingHead) -> subprocess.Popen[bytes]:
    """An ordinary node: what an admin types on another machine."""
    base, lock = claim_ports()
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    command += [f"--address={head.address}", f"--node-ip-address={PLAIN_IP}", "--num-gpus=2"]
    command += ["--num-cpus=2", "--disable-usage-stats", "--object-store-memory=80000000"]
    command += [f"--{name}={base + 2 + i}" for i, name in enumerate(PORT_FLAGS)]
    command += [f"--min-worker-port={base + 20}", f"--max-worker-port={base + 199}"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "HYBRID_"))}
    env = {**clean, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": head.token,
           "HYBRID_FAKE_GPUS": "V100:2"}  # fmt: skip
    with (home / "plain.log").open("ab") as log:
        return subprocess.Popen(
            command, env=env, stdout=log, stderr=log, start_new_session=True,
            pass_fds=(lock.fileno(),),
        )  # fmt: skip


@dataclass
class Scene:
    pool: Pool
    client: PoolClient
    backend: PoolBackend

    async def nodes(self) -> dict[str, PoolNode]:
        """Once both nodes are there."""
        deadline = time.monotonic() + 60
        while True:
            view = await self.client.view()
            found = {node.id: node for node in view.nodes}
            if len(found) == 2:
                return found
            assert time.monotonic() < deadline, view
            await asyncio.sleep(0.3)

    async def task(self, lease_id: str, *wanted: tuple[str, int], fence: float = 300) -> LeaseTask:
        """A lease of the first n cards of each named node."""
        nodes = await self.nodes()
        shares = tuple(
            NodeShare(name, tuple(c.uuid for c in nodes[name].cards[:count]), 0.5)
            for name, count in wanted
        )
        return LeaseTask(
            id=lease_id,
            kind=LeaseKind.POOL,
            token=lease_id,
            cluster_token=f"secret-of-{lease_id}",
            gang=Gang(nodes=len(wanted), gpus_per_node=wanted[0][1], cpus=0.0),
            expires_at=datetime.now(UTC) + timedelta(seconds=fence),
            shares=shares,
        )

    async def up(self, task: LeaseTask) -> tuple[LeaseTask, Endpoint]:
        acquired = await self.backend.acquire(task)
        task = replace(task, shares=acquired.shares)
        deadline = time.monotonic() + 90
        while True:
            progress = await self.backend.progress(task)
            assert progress.failed is None, progress
            if progress.endpoint is not None:
                return task, progress.endpoint
            assert time.monotonic() < deadline, progress
            await asyncio.sleep(0.1)

    async def down(self, task: LeaseTask) -> None:
        deadline = time.monotonic() + 30
        while (remains := await self.backend.release(task)) is not None:
            assert time.monotonic() < deadline, remains
            await asyncio.sleep(0.1)


def connect(pool: Pool) -> Scene:
    head = pool.head
    client = PoolClient(head.address, head.token, pool.orchestrator, pool.home / "bridge.log")
    backend = PoolBackend(client, pool.orchestrator, SystemClock(), RayClusterClient, "2.60.0")
    return Scene(pool, client, backend)


@asynccontextmanager
async def scene(pool: Pool) -> AsyncIterator[Scene]:
    made = connect(pool)
    client, backend = made.client, made.backend
    try:
        yield made
    finally:
        for lease_id in await backend.found():
            await made.down(replace(await made.task(lease_id, (PLAIN_IP, 1)), shares=()))
        await client.close()


async def run_job(
    endpoint: Endpoint, name: str, entrypoint: str, code: str = "", **fields: Any
) -> tuple[str, str]:
    """Status and log of a job on a lease's cluster."""
    cluster = RayClusterClient(endpoint)
    try:
        body: dict[str, Any] = {"entrypoint": entrypoint, "submission_id": name, **fields}
        if code:
            package = f"_ray_pkg_{name}.zip"
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / package
                with zipfile.ZipFile(path, "w") as archive:
                    archive.writestr("main.py", code)
                await cluster.put_package(package, str(path))
            body["runtime_env"] = {"working_dir": f"gcs://{package}"}
        await cluster.submit(body)
        await cluster.submit(body)  # a repeated dispatch is success
        deadline = time.monotonic() + 60
        while (job := await cluster.job(name)) is None or job.status in ("PENDING", "RUNNING"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        return job.status, (await cluster.logs(name)).decode()
    finally:
        await cluster.close()


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


# --------------------------------------------------------------------------- isolation


def test_a_job_sees_its_card_alone_and_asking_for_more_is_noticed(pool: Pool) -> None:
    async def story() -> None:
        async with scene(pool) as s:
            task, endpoint = await s.up(await s.task("one", (PLAIN_IP, 1)))
            card = task.shares[0].cards[0]
            code = (
                "import os, ray\nray.init()\n"
                "@ray.remote(num_gpus=1)\n"
                "def f(): return os.environ['CUDA_VISIBLE_DEVICES']\n"
                "@ray.remote(num_gpus=0)\n"
                "def g(): return os.environ.get('CUDA_VISIBLE_DEVICES', '')\n"
                "print('task', ray.get(f.remote()), 'none', repr(ray.get(g.remote())),\n"
                "      'total', ray.cluster_resources()['GPU'])\n"
            )
            status, log = await run_job(endpoint, "sees", "python main.py", code)
            assert status == "SUCCEEDED", log
            assert f"task {card} none '' total 1.0" in log
            greedy = (
                "import ray\nray.init()\n"
                "@ray.remote(num_gpus=2)\ndef f(): return 1\nray.get(f.remote())\n"
            )
            cluster = RayClusterClient(endpoint)
            waiting = asyncio.create_task(run_job(endpoint, "greedy", "python main.py", greedy))
            deadline = time.monotonic() + 40
            while (unmet := await cluster.unmet_demand()) is None:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.5)
            assert "asks for" in unmet
            assert "2 GPU" in unmet
            assert await cluster.stop("greedy")
            assert (await waiting)[0] == "STOPPED"
            await cluster.close()
            await s.down(task)

    play(story())


def test_side_by_side_leases_never_share_a_card_and_a_taken_one_is_refused(pool: Pool) -> None:
    async def story() -> None:
        async with scene(pool) as s:
            wanted = await s.task("first", ("127.0.0.2", 1))
            head = (await s.nodes())["127.0.0.2"]
            assert all(c.unusable and "head offers no cards" in c.unusable for c in head.cards)
            first = await s.backend.acquire(wanted)
            assert await s.backend.acquire(wanted) == first  # idempotent by the lease's id
            with pytest.raises(LeaseUnavailable, match="something else holds"):
                await s.backend.acquire(replace(wanted, id="second"))
            # On the plain node Ray chooses: both ask for the same card and get different ones.
            a = await s.backend.acquire(await s.task("third", (PLAIN_IP, 1)))
            b = await s.backend.acquire(await s.task("fourth", (PLAIN_IP, 1)))
            assert a.shares[0].cards != b.shares[0].cards
            assert set(await s.backend.found()) == {"first", "third", "fourth"}

    play(story())


def test_a_gang_over_two_nodes_runs_on_two_raylets_with_their_own_cards(pool: Pool) -> None:
    async def story() -> None:
        async with scene(pool) as s:
            task, endpoint = await s.up(await s.task("gang", ("127.0.0.2", 1), (PLAIN_IP, 1)))
            code = (
                "import os, ray\nray.init()\n"
                "@ray.remote(num_gpus=1)\n"
                "class Rank:\n"
                "    def card(self): return os.environ['CUDA_VISIBLE_DEVICES']\n"
                "    def ip(self): return ray.util.get_node_ip_address()\n"
                "ranks = [Rank.remote(), Rank.remote()]\n"
                "print(sorted(ray.get([r.ip.remote() for r in ranks])))\n"
                "print(sorted(ray.get([r.card.remote() for r in ranks])))\n"
            )
            status, log = await run_job(endpoint, "ranks", "python main.py", code)
            assert status == "SUCCEEDED", log
            assert str(sorted(["127.0.0.2", PLAIN_IP])) in log
            assert str(sorted(c for share in task.shares for c in share.cards)) in log
            await s.down(task)

    play(story())


# --------------------------------------------------------------------------- ends


def marked(marker: str) -> list[int]:
    """Living processes with the marker in their command line (the shell's own aside)."""
    return [
        p.pid
        for p in psutil.process_iter(["cmdline"])
        if marker in (p.info["cmdline"] or []) and p.pid != os.getpid()
    ]


@pytest.mark.parametrize("namespaces", [True, False])
def test_nothing_of_a_job_outlives_its_lease_not_even_what_ran_away(
    pool: Pool, namespaces: bool
) -> None:
    async def story() -> None:
        marker = f"98765{int(namespaces)}"
        async with scene(pool) as s:
            task = await s.task(f"runaway-{namespaces}", (PLAIN_IP, 1))
            if not namespaces:
                s.backend.guard_env = {"HYBRID_GUARD_NO_NAMESPACE": "1"}
            task, endpoint = await s.up(task)
            entrypoint = f"bash -c 'setsid nohup sleep {marker} >/dev/null 2>&1 & sleep 0.2'"
            status, log = await run_job(endpoint, "runs-away", entrypoint)
            assert status == "SUCCEEDED", log
            assert marked(marker)
            await s.down(task)
            assert marked(marker) == []
            assert "runaway" not in await s.backend.found()

    play(story())


def test_the_sweep_after_a_job_kills_only_what_that_attempt_left(pool: Pool) -> None:
    async def story() -> None:
        async with scene(pool) as s:
            task, endpoint = await s.up(await s.task("swept", (PLAIN_IP, 1)))
            env = {"env_vars": {"HYBRID_ATTEMPT_ID": "attempt-1"}}
            entrypoint = "bash -c 'setsid nohup sleep 987661 >/dev/null 2>&1 & sleep 0.2'"
            await run_job(endpoint, "left", entrypoint, runtime_env=env)
            assert marked("987661")
            assert await s.backend.sweep(task, "attempt-1") is None
            assert marked("987661") == []
            assert (await run_job(endpoint, "next", "echo still works"))[0] == "SUCCEEDED"
            await s.down(task)

    play(story())


@pytest.mark.parametrize("namespaces", [True, False])
def test_nothing_outlives_a_guard_that_is_killed(pool: Pool, namespaces: bool) -> None:
    async def story() -> None:
        marker = f"97531{int(namespaces)}"
        async with scene(pool) as s:
            if not namespaces:
                s.backend.guard_env = {"HYBRID_GUARD_NO_NAMESPACE": "1"}
            task, endpoint = await s.up(await s.task(f"killed-{namespaces}", (PLAIN_IP, 1)))
            cluster = RayClusterClient(endpoint)
            await cluster.submit({"entrypoint": f"sleep {marker}", "submission_id": "victim"})
            while not marked(marker):
                await asyncio.sleep(0.2)
            await cluster.close()
            guards = [
                process
                for process in psutil.process_iter(["cmdline"])
                if f"killed-{namespaces}" in " ".join(process.info["cmdline"] or [])
                and "guard.py" in " ".join(process.info["cmdline"] or [])
            ]
            assert len(guards) == 1
            folder = Path(guards[0].info["cmdline"][-2])  # guard.py LEASE_DIR --daemon
            scratch = Path(json.loads((folder / "state.json").read_text())["scratch"])
            assert scratch.is_dir()
            guards[0].kill()
            health = await s.backend.health(task)
            assert (health.health, "guard died" in health.reason) == (Health.GONE, True)
            assert marked(marker) == []
            assert not scratch.exists()
            await s.down(task)

    play(story())


def test_the_fence_ends_a_lease_without_anybody(pool: Pool) -> None:
    async def story() -> None:
        async with scene(pool) as s:
            task, _ = await s.up(await s.task("fenced", (PLAIN_IP, 1), fence=300))
            await s.backend.renew(task, datetime.now(UTC) + timedelta(seconds=2))
            deadline = time.monotonic() + 20
            while (health := await s.backend.health(task)).health is Health.ALIVE:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.2)
            assert health.health is Health.GONE
            assert "fence" in health.reason
            await s.down(task)

    play(story())


# --------------------------------------------------------------------------- restarts


def test_a_lease_outlives_the_bridge_and_is_found_by_the_next(pool: Pool) -> None:
    async def story() -> None:
        async with scene(pool) as s:
            task, endpoint = await s.up(await s.task("kept", (PLAIN_IP, 1)))
        # `scene` would have ended it: so it was, and is not found any more.
        async with scene(pool) as s:
            assert "kept" not in await s.backend.found()
            task, endpoint = await s.up(await s.task("kept-2", (PLAIN_IP, 1)))
            bridge = s.client._process
            assert bridge is not None
            bridge.kill()
            await bridge.wait()
            assert (await run_job(endpoint, "through", "echo alive"))[0] == "SUCCEEDED"
            assert (await s.backend.health(task)).health is Health.ALIVE
            assert "kept-2" in await s.backend.found()
            await s.down(task)

    play(story())


def test_a_lease_outlives_the_pools_head_and_gets_its_reservation_back(pool: Pool) -> None:
    """The last of this module: the standing cluster is another one afterwards."""

    async def story() -> None:
        s = connect(pool)
        client, backend = s.client, s.backend
        task, endpoint = await s.up(await s.task("survivor", ("127.0.0.2", 1)))
        cluster = RayClusterClient(endpoint)
        await cluster.submit({"entrypoint": "sleep 25; echo made it", "submission_id": "long"})
        stop_head(pool.home)
        health = await backend.health(task)
        assert health.health is Health.UNREACHABLE, health
        view = await client.view()
        assert not view.available
        assert view.note
        await client.close()
        pool.head = start_head(pool.home, fake_gpus="A100:2,T4:1", num_cpus=4)
        s = connect(pool)
        client, backend = s.client, s.backend
        assert (await client.view()).available
        assert await client.reservations() == []
        assert (await backend.health(task)).health is Health.ALIVE
        assert await client.reservations() == ["survivor"]
        deadline = time.monotonic() + 60
        while (job := await cluster.job("long")) is None or job.status != "SUCCEEDED":
            assert time.monotonic() < deadline, job
            await asyncio.sleep(0.5)
        assert b"made it" in await cluster.logs("long")
        await cluster.close()
        await s.down(task)
        assert await backend.found() == {}
        await client.close()

    play(story())


def test_json_of_a_spec_is_the_same_each_time() -> None:
    from hybrid.lease.spec import LeaseSpec

    spec = LeaseSpec("l", "o", True, "ip", None, ("c",), 1, 1.0, 0, "t", 1.0, "python")
    assert spec.to_json() == spec.to_json()
    assert json.loads(spec.to_json())["cards"] == ["c"]
