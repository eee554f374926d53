"""Overflow to the `local` cloud, and everything rented observed gone afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.installation import Hybrid

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def bursting(make_hybrid: Callable[..., Hybrid]) -> Hybrid:
    return make_hybrid(max_wait=2, warm=0, fake="T4:1")


def leases(hybrid: Hybrid) -> list[dict[str, object]]:
    return list(json.loads(hybrid.run("hybrid", "--json", "lease", "ls", "--all").stdout))


def wait_until_released(hybrid: Hybrid, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while any(row["state"] != "released" for row in leases(hybrid)):
        assert time.monotonic() < deadline, leases(hybrid)
        time.sleep(0.5)


def test_overflow_bursts_runs_and_is_observed_gone(bursting: Hybrid) -> None:
    client = bursting.client
    own = client.submit_job(entrypoint="sleep 25", entrypoint_num_gpus=1)
    bursting.wait(own, "RUNNING")
    over = client.submit_job(
        entrypoint="echo in the cloud", entrypoint_num_gpus=1, submission_id="over"
    )
    assert bursting.ended(over) == "SUCCEEDED"
    assert "in the cloud" in client.get_job_logs(over)
    why = bursting.run("hybrid", "job", "why", over).stdout
    assert "burst" in why
    assert bursting.ended(own) == "SUCCEEDED"
    wait_until_released(bursting)
    assert any(row["kind"] == "cloud" for row in leases(bursting))
    assert bursting.run("hybrid", "leaks").stdout.strip() == ""


def test_a_stop_during_boot_leaves_nothing_rented(bursting: Hybrid) -> None:
    client = bursting.client
    job = client.submit_job(
        entrypoint="true", entrypoint_num_gpus=1, metadata={"hybrid.place": "cloud"}
    )
    deadline = time.monotonic() + 60
    while not any(row["job_id"] == job for row in leases(bursting)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert client.stop_job(job)
    assert bursting.wait(job, "STOPPED") == "STOPPED"
    wait_until_released(bursting)
    assert bursting.run("hybrid", "leaks").stdout.strip() == ""
