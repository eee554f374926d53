"""Cloud leases over the `local` provider's faults: launch, watch, and end until observed gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hybrid.cloud.backend import CloudBackend, LaunchUnclear
from hybrid.cloud.bootstrap import LIMIT_BYTES, render
from hybrid.cloud.sweeper import find_leaks
from hybrid.core.model import Gang, LeaseKind
from hybrid.lease.cluster import RayClusterClient
from hybrid.ports import ErrorKind, Health, InstanceState, LeaseTask, LeaseUnavailable
from hybrid.service.deps import SystemClock
from hybrid_local import LocalProvider

ME = "hybrid-me"


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[LocalProvider]:
    found = LocalProvider(tmp_path / "cloud")
    configure(found, "")
    yield found
    configure(found, "")
    deadline = time.monotonic() + 20
    while living(found):
        for machine in living(found):
            found.terminate(machine)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def configure(provider: LocalProvider, faults: str, **settings: object) -> None:
    """Machines run user data that does nothing: these tests are about machines, not Ray."""
    lines = [f"{k} = {v}" for k, v in {"boot_delay_seconds": 0.1, **settings}.items()]
    text = "\n".join([*lines, "[faults]", faults])
    (provider.folder / "local.toml").write_text(text)


def living(provider: LocalProvider) -> list[str]:
    return [m.id for m in provider.instances() if m.state is not InstanceState.GONE]


def backend(provider: LocalProvider) -> CloudBackend:
    return CloudBackend({"local": provider}, ME, SystemClock(), RayClusterClient, "2.60.0")


def task(provider: LocalProvider, lease_id: str = "lease-1", **changes: object) -> LeaseTask:
    now = datetime.now(UTC)
    offer = next(o for o in provider.offers() if o.instance_type == "local.t4.1")
    made = LeaseTask(
        id=lease_id,
        kind=LeaseKind.CLOUD,
        token=f"token-{lease_id}",
        cluster_token="secret",
        gang=Gang(gpus_per_node=1),
        expires_at=now + timedelta(minutes=5),
        hard_end_at=now + timedelta(hours=1),
        requested_at=now,
        offer=offer,
        tags={"hybrid-orchestrator": ME, "hybrid-lease": lease_id},
        price_ceiling=offer.price_per_hour,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


async def release(cloud: CloudBackend, wanted: LeaseTask, timeout: float = 20) -> list[str]:
    """Until observed gone; what remained on the way."""
    seen, deadline = [], time.monotonic() + timeout
    while (remains := await cloud.release(wanted)) is not None:
        seen.append(remains)
        assert time.monotonic() < deadline, remains
        await asyncio.sleep(0.1)
    return seen


def test_the_same_lease_launches_once_also_after_a_crash(provider: LocalProvider) -> None:
    async def scene() -> None:
        wanted = task(provider)
        first = await backend(provider).acquire(wanted)
        again = await backend(provider).acquire(wanted)
        assert first == again
        assert len(living(provider)) == 1
        assert "lease-1" in await backend(provider).found()
        done = replace(wanted, instance_ids=first.instance_ids, acquired=True)
        assert (await backend(provider).health(done)).health is Health.ALIVE
        await release(backend(provider), done)
        assert living(provider) == []

    asyncio.run(scene())


def test_a_launch_that_timed_out_after_creating_is_repeated_not_doubled(
    provider: LocalProvider,
) -> None:
    configure(provider, "launch_hangs_after_creating = true")

    async def scene() -> None:
        wanted, cloud = task(provider), backend(provider)
        with pytest.raises(LaunchUnclear):
            await cloud.acquire(wanted)
        assert len(living(provider)) == 1
        acquired = await cloud.acquire(wanted)
        assert list(acquired.instance_ids) == living(provider)

    asyncio.run(scene())


def test_a_cancel_while_nobody_knows_ends_what_was_created(provider: LocalProvider) -> None:
    """skypilot#4410: cancel while recovering; the job says cancelled, the cluster lives."""
    configure(provider, "launch_hangs_after_creating = true\ninvisible_seconds = 1.0")

    async def scene() -> None:
        long_ago = datetime.now(UTC) - timedelta(seconds=117)
        wanted, cloud = task(provider, requested_at=long_ago), backend(provider)
        with pytest.raises(LaunchUnclear):
            await cloud.acquire(wanted)
        remains = await release(cloud, wanted)
        assert any("may still appear" in r or "is running" in r for r in remains)
        await asyncio.sleep(1.0)
        assert living(provider) == []

    asyncio.run(scene())


def test_a_machine_that_the_list_does_not_show_yet_is_not_gone(provider: LocalProvider) -> None:
    """skypilot PR#4443: just-created instances are invisible for a moment."""
    configure(provider, "invisible_seconds = 30")

    async def scene() -> None:
        cloud = backend(provider)
        acquired = await cloud.acquire(task(provider))
        wanted = task(provider, instance_ids=acquired.instance_ids, acquired=True)
        assert (await cloud.health(wanted)).health is Health.ALIVE
        assert "does not list" in str(await cloud.release(wanted))

    asyncio.run(scene())


def test_a_terminate_that_lies_is_repeated_until_observed(provider: LocalProvider) -> None:
    configure(provider, "terminate_lies_seconds = 1.5")

    async def scene() -> None:
        cloud = backend(provider)
        acquired = await cloud.acquire(task(provider))
        wanted = task(provider, instance_ids=acquired.instance_ids, acquired=True)
        remains = await release(cloud, wanted)
        assert len(remains) > 5
        assert living(provider) == []

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("capacity", ErrorKind.CAPACITY),
        ("quota", ErrorKind.QUOTA),
        ("auth", ErrorKind.AUTH),
        ("unsupported", ErrorKind.UNSUPPORTED),
        ("bad-parameter", ErrorKind.BAD_PARAMETER),
    ],
)
def test_a_refusal_keeps_its_kind(provider: LocalProvider, fault: str, kind: ErrorKind) -> None:
    configure(provider, f'launch_error = "{fault}"')

    async def scene() -> None:
        with pytest.raises(LeaseUnavailable) as refused:
            await backend(provider).acquire(task(provider))
        assert refused.value.kind is kind
        assert await backend(provider).release(task(provider, acquired=False)) is None

    asyncio.run(scene())


@pytest.mark.parametrize("fault", ["throttled", "something new"])
def test_an_unclear_failure_is_never_taken_for_a_refusal(
    provider: LocalProvider, fault: str
) -> None:
    configure(provider, f'launch_error = "{fault}"\nlaunch_error_times = 1')

    async def scene() -> None:
        with pytest.raises(LaunchUnclear):
            await backend(provider).acquire(task(provider))
        assert (await backend(provider).acquire(task(provider))).instance_ids

    asyncio.run(scene())


def test_a_reclaimed_machine_is_told_from_a_broken_one(provider: LocalProvider) -> None:
    async def scene() -> None:
        cloud = backend(provider)
        acquired = await cloud.acquire(task(provider))
        wanted = task(provider, instance_ids=acquired.instance_ids, acquired=True)
        folder = provider.folder / "machines" / acquired.instance_ids[0]
        while not (folder / "state.json").exists():
            await asyncio.sleep(0.05)
        (folder / "reclaim").touch()
        deadline = time.monotonic() + 10
        while (health := await cloud.health(wanted)).health is Health.ALIVE:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert (health.health, health.reclaimed) == (Health.GONE, True)

    asyncio.run(scene())


# --------------------------------------------------------------------------- sweeper, user data


def test_the_sweep_goes_by_exact_tag_and_spares_the_young_and_the_explained(
    provider: LocalProvider,
) -> None:
    """fusor/catasb#224: terminate by name substring killed other machines."""

    async def scene() -> None:
        cloud = backend(provider)
        await cloud.acquire(task(provider, "lease-leak"))
        await cloud.acquire(task(provider, "lease-live"))
        foreign = {"hybrid-orchestrator": ME + "-2", "hybrid-lease": "lease-leak"}
        await cloud.acquire(task(provider, "lease-other", tags=foreign))
        now = datetime.now(UTC)
        live = frozenset({"lease-live"})
        assert find_leaks([provider], ME, live, now) == []
        later = now + timedelta(seconds=91)
        leaks = find_leaks([provider], ME, live, later)
        assert [leak.lease_id for leak in leaks] == ["lease-leak"]

    asyncio.run(scene())


def test_user_data_is_small_deterministic_and_starts_the_timer_first(
    provider: LocalProvider,
) -> None:
    wanted = task(provider)
    text = render(wanted, ME)
    assert text == render(wanted, ME)
    assert len(text.encode()) < LIMIT_BYTES
    assert text.index("dead-man timer") < text.index("writing the guard")
    assert "secret" not in text  # not in clear; encoded, since the machine must know it


def test_the_dead_man_timer_powers_off_even_if_nothing_else_works(
    provider: LocalProvider,
) -> None:
    async def scene() -> None:
        soon = datetime.now(UTC) + timedelta(seconds=3)
        text = render(task(provider, hard_end_at=soon), ME, python="/does/not/exist")
        wanted = task(provider)
        cloud = backend(provider)
        await cloud.acquire(wanted)
        folder = next((provider.folder / "machines").iterdir())
        script = text.replace("sleep 5", "sleep 0.2")
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", script,
            env={"PATH": "/usr/bin:/bin", "HYBRID_MACHINE_DIR": str(folder),
                 "HYBRID_POWEROFF": f"touch {folder}/poweroff"},
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert await process.wait() != 0
        deadline = time.monotonic() + 20
        while living(provider):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        state = next(iter(provider.instances()))
        assert state.state_reason == "shut down from the inside"

    asyncio.run(scene())
