"""Replay a history and score every prediction against what came.

Causal: a prediction sees only what had happened before its moment. The first `WARM_UP` of the
jobs are learned from and not scored.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal

from hybrid.core.predict import Past, Prediction, Traits, stem
from hybrid.traces.record import Ended, TraceJob

WARM_UP = 0.3
Moment = Literal["submit", "dispatch"]
#: Ends that tell the whole runtime; `UNKNOWN` is what traces without a state say of all jobs.
FINISHED = frozenset({Ended.COMPLETED, Ended.FAILED, Ended.UNKNOWN})

#: Runs that the median baseline looks at: the window that serves it best on our traces.
MEDIAN_RUNS = 20

#: Order of things that happen at the same second: what is submitted or started at a moment does
#: not yet know of what ends at it.
_SUBMIT, _START, _END = range(3)


@dataclass(frozen=True, slots=True)
class Score:
    """How one predictor did. Ratios are max(predicted, true) / min(predicted, true), ≥ 1."""

    name: str
    jobs: int
    answered: float
    within_two: float
    median_ratio: float
    p90_ratio: float
    covered: float | None = None
    covered_by_decile: tuple[float, ...] = ()


def traits_of(job: TraceJob) -> Traits:
    """What was known of a past job before it ran."""
    return Traits(
        user=job.user,
        gpus=job.gpus,
        partition=job.partition,
        cpus=job.cpus,
        memory_bytes=job.memory_bytes,
        gpu_model=job.gpu_model,
        limit_seconds=job.limit_seconds,
        stem=stem(job.name),
    )


@dataclass(slots=True)
class _Baselines:
    """Predictors that sites use today, for comparison."""

    last: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(_two))
    sizes: dict[tuple[str, int], deque[float]] = field(default_factory=lambda: defaultdict(_window))

    def learn(self, job: TraceJob) -> None:
        self.last[job.user].append(job.runtime_seconds)
        self.sizes[job.user, job.gpus].append(job.runtime_seconds)

    def predict(self, job: TraceJob) -> Iterator[tuple[str, float | None]]:
        yield "the user's limit", job.limit_seconds
        two = self.last.get(job.user)
        yield "mean of the user's last 2", sum(two) / len(two) if two else None
        like = self.sizes.get((job.user, job.gpus))
        yield "median per user and size", median(like) if like else None


def _two() -> deque[float]:
    return deque(maxlen=2)


def _window() -> deque[float]:
    return deque(maxlen=MEDIAN_RUNS)


def events(jobs: Sequence[TraceJob]) -> list[tuple[float, int, int]]:
    """(moment, what, index of the job) in the order in which they are told."""
    found = []
    for index, job in enumerate(jobs):
        start = job.submit if job.start is None else job.start
        found.append((job.submit, _SUBMIT, index))
        found.append((start, _START, index))
        found.append((start + job.runtime_seconds, _END, index))
    found.sort()
    return found


def backtest(jobs: Sequence[TraceJob], at: Moment = "submit") -> list[Score]:
    """Score the predictor and the baselines on `jobs` (by submission), the first `WARM_UP` of
    them learned from only. `dispatch` predicts again at the start of each job."""
    past, simple = Past(), _Baselines()
    first_scored = int(len(jobs) * WARM_UP)
    forecasts: dict[int, Prediction] = {}
    ours: list[tuple[TraceJob, float, bool]] = []
    others: dict[str, list[tuple[TraceJob, float]]] = defaultdict(list)
    asked = _SUBMIT if at == "submit" else _START
    traits = [traits_of(job) for job in jobs]
    for moment, what, index in events(jobs):
        job = jobs[index]
        if what == asked:
            forecast = forecasts[index] = past.predict(traits[index], moment)
            if index >= first_scored:
                low, high = forecast.interval
                inside = low <= job.runtime_seconds <= high
                ours.append((job, forecast.point, inside))
                for name, guess in simple.predict(job):
                    if guess is not None:
                        others[name].append((job, guess))
        if what == _START:
            past.started(str(index), traits[index], moment)
        elif what == _END:
            finished = job.ended in FINISHED
            past.ended(str(index), job.runtime_seconds, finished, forecasts.pop(index))
            simple.learn(job)
    return [
        _score("hybrid", [(job, guess) for job, guess, _ in ours], len(ours), ours),
        *(_score(name, rows, len(ours)) for name, rows in others.items()),
    ]


def _score(
    name: str,
    rows: Sequence[tuple[TraceJob, float]],
    asked: int,
    intervals: Sequence[tuple[TraceJob, float, bool]] = (),
) -> Score:
    ratios = sorted(
        max(guess, job.runtime_seconds) / max(1e-9, min(guess, job.runtime_seconds))
        for job, guess in rows
    )
    if not ratios:
        return Score(name, 0, 0.0, 0.0, 0.0, 0.0)
    return Score(
        name=name,
        jobs=len(ratios),
        answered=len(ratios) / asked,
        within_two=sum(r <= 2.0 for r in ratios) / asked,
        median_ratio=ratios[len(ratios) // 2],
        p90_ratio=ratios[int(0.9 * (len(ratios) - 1))],
        covered=_share(inside for _, _, inside in intervals) if intervals else None,
        covered_by_decile=_deciles(intervals),
    )


def _share(flags: Iterable[bool]) -> float:
    counted = list(flags)
    return sum(counted) / len(counted) if counted else 0.0


def _deciles(intervals: Sequence[tuple[TraceJob, float, bool]]) -> tuple[float, ...]:
    """Coverage in each tenth of the users, fewest jobs first."""
    by_user: dict[str, list[bool]] = defaultdict(list)
    for job, _, inside in intervals:
        by_user[job.user].append(inside)
    users = sorted(by_user.values(), key=len)
    if len(users) < 10:
        return ()
    edges = [round(i * len(users) / 10) for i in range(11)]
    return tuple(_share(flag for user in users[a:b] for flag in user) for a, b in pairwise(edges))
