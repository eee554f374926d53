"""The path of one job, from the unmodified `ray` CLI to its end, on one shared installation."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.installation import Hybrid

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

CARDS = "import os; print('cards', os.environ.get('CUDA_VISIBLE_DEVICES', 'none'))"


def test_a_followed_submit_prints_the_log_and_succeeds(hybrid: Hybrid, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("ANSWER = 42\n")
    (tmp_path / "train.py").write_text("from helper import ANSWER\nprint('answer', ANSWER)\n")
    done = hybrid.run(
        "ray", "job", "submit", "--working-dir", str(tmp_path), "--submission-id", "followed",
        "--entrypoint-num-gpus", "1", "--", "python", "train.py",
    )  # fmt: skip
    assert "answer 42" in done.stdout
    assert "Job 'followed' succeeded" in done.stdout
    assert "answer 42" in hybrid.run("ray", "job", "logs", "followed").stdout


def test_a_job_sees_exactly_the_card_it_was_given(hybrid: Hybrid) -> None:
    client = hybrid.client
    job = client.submit_job(entrypoint=f'python -c "{CARDS}"', entrypoint_num_gpus=1)
    assert hybrid.ended(job) == "SUCCEEDED"
    line = next(x for x in client.get_job_logs(job).splitlines() if x.startswith("cards"))
    assert len(line.split()[1].split(",")) == 1
    detail = json.loads(hybrid.run("hybrid", "--json", "job", "show", job).stdout)
    lease = detail["history"][0]["lease_id"]
    leases = json.loads(hybrid.run("hybrid", "--json", "lease", "ls", "--all").stdout)
    assert line.split()[1] in next(row["where"] for row in leases if row["id"] == lease)


def test_a_failing_job_keeps_its_exit_code_and_is_not_retried(hybrid: Hybrid) -> None:
    client = hybrid.client
    job = client.submit_job(entrypoint='python -c "raise SystemExit(7)"')
    assert hybrid.ended(job) == "FAILED"
    info = client.get_job_info(job)
    assert info.driver_exit_code == 7
    assert info.error_type is not None
    detail = json.loads(hybrid.run("hybrid", "--json", "job", "show", job).stdout)
    assert detail["attempts"] == 1


def test_the_second_job_of_an_owner_reuses_the_warm_lease(hybrid: Hybrid) -> None:
    client = hybrid.client
    first = client.submit_job(entrypoint="true", entrypoint_num_gpus=1)
    hybrid.ended(first)
    second = client.submit_job(entrypoint="true", entrypoint_num_gpus=1)
    hybrid.ended(second)
    leases = [
        json.loads(hybrid.run("hybrid", "--json", "job", "show", job).stdout)["lease_id"]
        for job in (first, second)
    ]
    assert leases[0] == leases[1]


def test_a_job_that_is_deleted_at_once_still_lets_its_lease_go(hybrid: Hybrid) -> None:
    client = hybrid.client
    job = client.submit_job(entrypoint="true", entrypoint_num_gpus=1)
    assert hybrid.ended(job) == "SUCCEEDED"
    assert client.delete_job(job)
    deadline = time.monotonic() + 20
    while any(
        lease["state"] == "busy"
        for lease in json.loads(hybrid.run("hybrid", "--json", "lease", "ls").stdout)
    ):
        assert time.monotonic() < deadline
        time.sleep(0.3)


def test_a_waiting_job_says_why_and_stops_at_once(hybrid: Hybrid) -> None:
    client = hybrid.client
    holders = [
        client.submit_job(
            entrypoint="sleep 300", entrypoint_num_gpus=2, metadata={"hybrid.gpu_model": model}
        )
        for model in ("A100", "T4")
    ]
    for holder in holders:
        hybrid.wait(holder, "RUNNING")
    waiting = client.submit_job(entrypoint="true", entrypoint_num_gpus=1)
    time.sleep(3)
    info = client.get_job_info(waiting)
    assert info.status == "PENDING"
    assert "osition 1" in (info.message or "")
    assert client.stop_job(waiting)
    assert client.get_job_status(waiting) == "STOPPED"
    for holder in holders:
        assert client.stop_job(holder)
    for holder in holders:
        assert hybrid.wait(holder, "STOPPED") == "STOPPED"


def test_a_gang_that_can_never_fit_is_refused_at_submit(hybrid: Hybrid) -> None:
    with pytest.raises(RuntimeError, match="largest"):
        hybrid.client.submit_job(entrypoint="true", entrypoint_num_gpus=64)


def test_demand_beyond_the_gang_is_noticed_and_ended(hybrid: Hybrid, tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(
        "import ray\nray.init()\n"
        "@ray.remote(num_gpus=2)\ndef f(): return 1\n"
        "print(ray.get(f.remote()))\n"
    )
    client = hybrid.client
    job = client.submit_job(
        entrypoint="python greedy.py",
        runtime_env={"working_dir": str(tmp_path)},
        metadata={"hybrid.gpus": "1"},
    )
    assert hybrid.ended(job, timeout=150) == "FAILED"
    assert "can never give" in (client.get_job_info(job).message or "")


def test_the_bill_adds_up(hybrid: Hybrid) -> None:
    from decimal import Decimal

    rows = json.loads(hybrid.run("hybrid", "--json", "report", "cost", "--by", "job").stdout)
    assert rows["rows"], rows
    for row in rows["rows"]:
        assert sum(Decimal(v) for v in row["amounts"].values()) == Decimal(row["total"])
    assert sum(Decimal(row["total"]) for row in rows["rows"]) == sum(
        Decimal(total) for total in rows["totals"].values()
    )
