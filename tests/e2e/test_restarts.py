"""Restarts and losses that a running job must survive, and bad weather around it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.installation import Hybrid

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def hybrid(make_hybrid: Callable[..., Hybrid]) -> Hybrid:
    return make_hybrid(max_wait=0, warm=0, fake="T4:2")


def show(hybrid: Hybrid, job_id: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        hybrid.run("hybrid", "--json", "job", "show", job_id).stdout
    )
    return found


def guard_of(lease_id: str) -> psutil.Process:
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if "guard.py" in line and lease_id in line:
            return process
    raise AssertionError(f"no guard of {lease_id}")


def test_followers_and_jobs_outlive_the_gateway(hybrid: Hybrid) -> None:
    """Every line is there once, although gateway and controller died in the middle."""
    script = "for i in $(seq 1 40); do echo line-$i; sleep 0.4; done"
    job = hybrid.client.submit_job(
        entrypoint=f"bash -c '{script}'", entrypoint_num_gpus=1, submission_id="lines"
    )
    hybrid.wait(job, "RUNNING")
    time.sleep(6)
    hybrid.kill_gateway()
    hybrid.up("--policy", "test")
    assert hybrid.ended(job) == "SUCCEEDED"
    lines = [x for x in hybrid.client.get_job_logs(job).splitlines() if x.startswith("line-")]
    assert lines == [f"line-{i}" for i in range(1, 41)]
    assert show(hybrid, job)["attempts"] == 1


def test_a_lost_lease_is_tried_again_and_a_users_failure_is_not(
    hybrid: Hybrid, tmp_path: Path
) -> None:
    """Look at the machine first, at the exit code second (skypilot PR#1610)."""
    first_time = tmp_path / "first"
    script = f"test -e {first_time} && exit 0; touch {first_time}; sleep 300"
    job = hybrid.client.submit_job(
        entrypoint=f"bash -c '{script}'", entrypoint_num_gpus=1, submission_id="again"
    )
    hybrid.wait(job, "RUNNING")
    while not first_time.exists():
        time.sleep(0.2)
    guard_of(str(show(hybrid, job)["lease_id"])).send_signal(signal.SIGKILL)
    assert hybrid.ended(job) == "SUCCEEDED"
    history = show(hybrid, job)["history"]
    assert isinstance(history, list)
    assert [a["state"] for a in history] == ["lost", "succeeded"]


def test_a_reclaimed_machine_does_not_count_against_the_user(
    hybrid: Hybrid, tmp_path: Path
) -> None:
    first_time = tmp_path / "first"
    script = f"test -e {first_time} && exit 0; touch {first_time}; sleep 300"
    job = hybrid.client.submit_job(
        entrypoint=f"bash -c '{script}'",
        entrypoint_num_gpus=1,
        submission_id="spot",
        metadata={"hybrid.place": "cloud", "hybrid.market": "spot"},
    )
    hybrid.wait(job, "RUNNING")
    while not first_time.exists():
        time.sleep(0.2)
    lease_id = show(hybrid, job)["lease_id"]
    leases = json.loads(hybrid.run("hybrid", "--json", "lease", "ls").stdout)
    machine = next(le["instance_ids"][0] for le in leases if le["id"] == lease_id)
    (hybrid.cloud_dir / "machines" / machine / "reclaim").touch()
    assert hybrid.ended(job) == "SUCCEEDED"
    history = show(hybrid, job)["history"]
    assert isinstance(history, list)
    assert [a["state"] for a in history] == ["lost", "succeeded"]
    assert "reclaimed" in history[0]["cause"]


def test_machines_that_never_join_are_given_up_and_the_job_says_why(hybrid: Hybrid) -> None:
    """parallelcluster PR#702: nodes that hang in bootstrap loop for ever."""
    policy = (hybrid.home / "policies" / "test.toml").read_text()
    short = policy.replace("[leases]", "[leases]\nboot_timeout_seconds = 4")
    (hybrid.home / "policies" / "short.toml").write_text(short)
    hybrid.run("hybrid", "policy", "use", "short")
    (hybrid.cloud_dir / "local.toml").write_text("[faults]\nhang_at_boot = true\n")
    try:
        job = hybrid.client.submit_job(
            entrypoint="true", entrypoint_num_gpus=1, metadata={"hybrid.place": "cloud"}
        )
        assert hybrid.ended(job) == "FAILED"
        message = hybrid.client.get_job_info(job).message or ""
        assert "gave up after 3 leases that failed to come up" in message
    finally:
        (hybrid.cloud_dir / "local.toml").unlink()
        hybrid.run("hybrid", "policy", "use", "test")
    deadline = time.monotonic() + 60
    while json.loads(hybrid.run("hybrid", "--json", "lease", "ls").stdout):
        assert time.monotonic() < deadline
        time.sleep(0.3)
    assert hybrid.run("hybrid", "leaks").stdout.strip() == ""


def test_a_zone_without_capacity_rests_and_the_next_is_tried(hybrid: Hybrid) -> None:
    """Failover is the next round of the planner. (The breaker of the T4 type is open by now.)"""
    (hybrid.cloud_dir / "local.toml").write_text(
        '[faults]\nlaunch_error = "capacity"\nzones = ["local-a"]\n'
    )
    try:
        job = hybrid.client.submit_job(
            entrypoint="echo elsewhere",
            entrypoint_num_gpus=1,
            metadata={"hybrid.place": "cloud", "hybrid.gpu_model": "L4"},
        )
        assert hybrid.ended(job) == "SUCCEEDED"
        assert "local-b" in str(show(hybrid, job)["place"])
        assert show(hybrid, job)["attempts"] == 1
        why = hybrid.run("hybrid", "offer", "ls").stdout
        assert "rehearsed fault: capacity; not tried again before" in why
    finally:
        (hybrid.cloud_dir / "local.toml").unlink()


def test_a_policy_file_with_an_error_changes_nothing_and_is_shown(hybrid: Hybrid) -> None:
    wrong = hybrid.home / "policies" / "wrong.toml"
    wrong.write_text("[leases]\n\nwarm_secs = 3\n")
    refused = hybrid.run("hybrid", "policy", "use", "wrong", check=False)
    assert refused.returncode == 2
    assert "line 3" in refused.stderr
    assert "did you mean leases.warm_seconds?" in refused.stderr
    assert "Traceback" not in refused.stderr
    status = json.loads(hybrid.run("hybrid", "--json", "status").stdout)
    assert status["policy"] == "test"


def test_up_twice_says_so_and_a_taken_port_is_named(hybrid: Hybrid, tmp_path: Path) -> None:
    again = hybrid.run("hybrid", "up", "--port", str(hybrid.port))
    assert "already up" in again.stderr
    other = hybrid.run(
        "hybrid", "up", "--no-pool", "--port", str(hybrid.port), check=False,
        HYBRID_HOME=str(tmp_path / "other"),
    )  # fmt: skip
    assert other.returncode == 1
    assert "cannot listen on" in other.stderr
