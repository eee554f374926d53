"""Backtests: causal, better than what sites use today, and the figures of the real traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hybrid.learn.backtest import backtest
from hybrid.traces.generate import Workload, generate
from hybrid.traces.read import read_trace
from hybrid.traces.write import write_trace
from tests.data import DRAC, PHILLY, real
from tests.traces.test_cli import hybrid


def test_a_prediction_sees_nothing_of_its_own_future() -> None:
    """Another outcome of the last job changes the score of that job at most."""
    jobs = generate(Workload(jobs=400, cards=32), seed=2)
    last = jobs[-1]
    changed = [*jobs[:-1], replace(last, runtime_seconds=last.runtime_seconds * 1000)]
    before, after = backtest(jobs)[0], backtest(changed)[0]
    assert after.jobs == before.jobs
    assert abs(after.within_two - before.within_two) <= 1 / before.jobs + 1e-12


def test_ours_beats_the_baselines_on_users_with_habits() -> None:
    jobs = generate(Workload(jobs=4000, cards=64, spread=0.5), seed=11)
    ours, *others = backtest(jobs)
    assert ours.name == "hybrid"
    assert others
    for other in others:
        assert ours.within_two > other.within_two
    assert ours.covered is not None
    assert 0.75 <= ours.covered <= 0.87


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "within_two", "p90"), [("submit", 0.50, float("inf")), ("dispatch", 0.73, 15.0)]
)
def test_the_alliance_canada_clusters(at: str, within_two: float, p90: float) -> None:
    jobs = [job for job in read_trace(real(DRAC))[0] if job.gpus > 0]
    score = backtest(jobs, "dispatch" if at == "dispatch" else "submit")[0]
    assert score.within_two >= within_two
    assert score.p90_ratio <= p90


@pytest.mark.slow
def test_philly_by_its_virtual_clusters() -> None:
    jobs, _ = read_trace(real(PHILLY))
    score = backtest(jobs)[0]
    assert score.within_two >= 0.64
    assert score.p90_ratio <= 25


def test_the_command(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    write_trace(trace, generate(Workload(jobs=300), seed=4))
    told = hybrid("--json", "predict", "backtest", str(trace))
    scores = json.loads(told.stdout)["scores"]
    assert scores[0]["name"] == "hybrid"
    shown = hybrid("predict", "backtest", str(trace), "--at", "dispatch").stdout
    assert "WITHIN 2X" in shown
    write_trace(trace, generate(Workload(jobs=3), seed=4))
    ended = hybrid("predict", "backtest", str(trace))
    assert ended.returncode == 2
    assert "a backtest needs 10" in ended.stderr
