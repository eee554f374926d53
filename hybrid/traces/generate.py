"""Synthetic histories: Gamma arrivals, log-normal runtimes that differ by user, given load."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from hybrid.traces.record import Ended, TraceJob


@dataclass(frozen=True, slots=True)
class Workload:
    """`load` is the demand as a share of `cards`; `arrival_cv` the coefficient of variation of
    the times between arrivals (1 = Poisson, more = bursty); `spread` the log-normal sigma of a
    user's runtimes around the user's own median."""

    jobs: int = 10_000
    cards: int = 64
    load: float = 1.0
    arrival_cv: float = 2.0
    mean_runtime_seconds: float = 3600.0
    spread: float = 1.0
    users: int = 40
    sizes: Sequence[tuple[int, float]] = ((1, 0.7), (2, 0.1), (4, 0.1), (8, 0.1))
    failing: float = 0.15


def generate(workload: Workload, seed: int) -> list[TraceJob]:
    """The same arguments give the same jobs, on every machine."""
    chance = random.Random(seed)
    medians = [math.exp(chance.gauss(0.0, 1.0)) for _ in range(workload.users)]
    sizes, weights = zip(*workload.sizes, strict=True)
    drawn = []
    for _ in range(workload.jobs):
        user = min(int(chance.expovariate(5.0) * workload.users), workload.users - 1)
        failed = chance.random() < workload.failing
        runtime = chance.uniform(5, 60) / workload.mean_runtime_seconds
        if not failed:
            runtime = medians[user] * math.exp(chance.gauss(0.0, workload.spread))
        drawn.append((user, chance.choices(sizes, weights)[0], runtime, failed))
    scale = workload.mean_runtime_seconds * len(drawn) / sum(d[2] for d in drawn)
    work = sum(gpus * runtime * scale for _, gpus, runtime, _ in drawn)
    gap = work / (workload.load * workload.cards) / len(drawn)
    shape = 1 / workload.arrival_cv**2
    at, jobs = 0.0, []
    for number, (user, gpus, runtime, failed) in enumerate(drawn):
        at += chance.gammavariate(shape, gap / shape)
        jobs.append(
            TraceJob(
                id=f"job-{number}",
                submit=at,
                runtime_seconds=max(1.0, runtime * scale),
                gpus=gpus,
                user=f"user-{user:02d}",
                project=f"project-{user % 5}",
                ended=Ended.FAILED if failed else Ended.COMPLETED,
            )
        )
    return jobs
