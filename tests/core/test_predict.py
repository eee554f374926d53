"""The runtime predictor: what it must be right about, whatever its constants are."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.core.predict import Past, Prediction, PredictorStateError, Traits, stem

ADA = Traits(user="ada", gpus=1, stem="python train.py")


def run(past: Past, job: str, traits: Traits, at: float, seconds: float, ok: bool = True) -> None:
    past.started(job, traits, at)
    past.ended(job, seconds, ok)


def test_without_history_there_is_a_wide_guess() -> None:
    told = Past().predict(ADA, 0.0)
    assert told.runs == 0
    assert told.quantile(0.1) < told.point < told.quantile(0.9)


def test_without_history_the_users_own_figures_count() -> None:
    estimated = Past().predict(replace(ADA, estimate_seconds=600.0), 0.0)
    assert estimated.quantile(0.5) == pytest.approx(600)
    limited = Past().predict(replace(ADA, limit_seconds=600.0), 0.0)
    assert max(limited.seconds) <= 600


def test_the_same_job_again_runs_as_long() -> None:
    past = Past()
    for i in range(10):
        run(past, f"a{i}", ADA, i * 1000.0, 900.0)
        run(past, f"b{i}", Traits(user="bob", gpus=8), i * 1000.0, 50_000.0)
    told = past.predict(ADA, 20_000.0)
    assert told.point == pytest.approx(900, rel=0.05)
    assert told.group == "stem"
    assert past.predict(Traits(user="bob", gpus=8), 20_000.0).mean > 30_000


def test_a_new_user_is_predicted_by_the_size_then_by_all() -> None:
    past = Past()
    for i in range(20):
        run(past, f"s{i}", Traits(user="ada", gpus=1), i * 10.0, 60.0)
        run(past, f"l{i}", Traits(user="ada", gpus=8), i * 10.0, 36_000.0)
    stranger = Traits(user="eve", gpus=8)
    assert past.predict(stranger, 1e6).quantile(0.5) == pytest.approx(36_000, rel=0.1)
    assert past.predict(replace(stranger, gpus=4), 1e6).group == "all"


def test_running_jobs_keep_the_estimate_from_being_too_short() -> None:
    """Ten runs start together; the three short ones have ended. What is left runs longer."""
    naive, careful = Past(), Past()
    for i in range(3):
        run(naive, f"s{i}", ADA, 0.0, 60.0)
        run(careful, f"s{i}", ADA, 0.0, 60.0)
    for i in range(7):
        careful.started(f"l{i}", ADA, 0.0)
    assert naive.predict(ADA, 7200.0).quantile(0.5) == pytest.approx(60)
    assert careful.predict(ADA, 7200.0).quantile(0.5) >= 7200


def test_a_stopped_run_says_at_least_so_long() -> None:
    past = Past()
    for i in range(5):
        run(past, f"x{i}", ADA, 0.0, 100.0)
        run(past, f"y{i}", ADA, 0.0, 1000.0)
        run(past, f"z{i}", ADA, 0.0, 500.0, ok=False)
    weight = sum(
        w for s, w in zip(*_parts(past.predict(ADA, 0.0)), strict=True) if s == pytest.approx(1000)
    )
    assert weight > 0.55


def _parts(told: Prediction) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return told.seconds, told.weights


def test_never_longer_than_the_limit() -> None:
    past = Past()
    for i in range(10):
        run(past, str(i), ADA, 0.0, 10_000.0)
    limited = replace(ADA, limit_seconds=3600.0)
    assert max(past.predict(limited, 1e5).seconds) == 3600.0


def test_given_elapsed_only_longer_runs_remain() -> None:
    told = Prediction((10.0, 100.0, 1000.0), (0.5, 0.3, 0.2))
    left = told.given(50.0)
    assert left.seconds == (100.0, 1000.0)
    assert left.weights == pytest.approx((0.6, 0.4))
    assert told.given(5000.0).point > 5000.0


def test_habits_change() -> None:
    past = Past()
    for i in range(60):
        run(past, f"old{i}", ADA, i * 100.0, 60.0)
    for i in range(40):
        run(past, f"new{i}", ADA, 6000.0 + i * 100.0, 6000.0)
    assert past.predict(ADA, 1e6).point == pytest.approx(6000, rel=0.2)


def test_the_interval_learns_to_cover() -> None:
    """A user whose runtimes spread far wider than the last few show."""
    chance, past, inside = random.Random(5), Past(), []
    for i in range(600):
        told = past.predict(ADA, i * 1e6)
        seconds = chance.lognormvariate(7, 2.5)
        low, high = told.interval
        inside.append(low <= seconds <= high)
        past.started(str(i), ADA, i * 1e6)
        past.ended(str(i), seconds, True, told)
    assert 0.74 <= sum(inside[100:]) / 500 <= 0.86


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 8), st.floats(0.001, 1e7), st.booleans()),
        max_size=40,
    )
)
def test_whatever_happened_the_answer_is_a_distribution(
    history: list[tuple[str, int, float, bool]],
) -> None:
    past = Past()
    for i, (user, gpus, seconds, ok) in enumerate(history):
        run(past, str(i), Traits(user=user, gpus=gpus), float(i), seconds, ok)
    told = past.predict(Traits(user="a", gpus=1), 1e9)
    assert sum(told.weights) == pytest.approx(1.0)
    assert list(told.seconds) == sorted(told.seconds)
    assert all(s > 0 for s in told.seconds)
    assert told.quantile(0.1) <= told.quantile(0.5) <= told.quantile(0.9)
    assert told.seconds[0] * 0.49 <= told.point <= told.seconds[-1] * 2.01


def test_a_saved_state_predicts_the_same() -> None:
    past = Past()
    for i in range(30):
        told = past.predict(ADA, i * 100.0)
        past.started(str(i), ADA, i * 100.0)
        past.ended(str(i), 50.0 + i, i % 4 > 0, told)
    past.started("still", ADA, 2900.0)
    again = Past.load(json.loads(json.dumps(past.dump())))
    assert again.predict(ADA, 5000.0) == past.predict(ADA, 5000.0)
    again.ended("still", 5000.0, True)
    assert again.dump() != past.dump()


def test_a_state_of_another_version_is_refused_in_words() -> None:
    with pytest.raises(PredictorStateError, match="has version 99, this Hybrid reads 1"):
        Past.load({"version": 99})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python /home/ada/x/train.py --seed 3", "python train.py --seed <n>"),
        ("python ./train.py --lr 1e-4", "python train.py --lr <n>"),
        ("run-2026-03-01T10:00", "run-<date>"),
        ("exp_20260301 v12", "exp_<date> v<n>"),
        ("fit 3f2a9c1b7d", "fit <hash>"),
        ("job 123e4567-e89b-12d3-a456-426614174000", "job <hash>"),
        ("", ""),
    ],
)
def test_stems_forget_what_changes_from_run_to_run(text: str, expected: str) -> None:
    assert stem(text) == expected
