"""The planner's round against the size of queue and pool."""

from __future__ import annotations

import time

from hybrid.core.plan import plan
from hybrid.core.policy import Policy
from hybrid.testing.builders import job, lease, node, offer, snapshot
from hybrid_policies.threshold import ConstantWait
from tests.bench.figures import Figure

SIZES = ((1_000, 64), (5_000, 256), (10_000, 1_250))


def run() -> list[Figure]:
    """A full pool of 8-card nodes and a queue of mixed jobs, none of which can start."""
    figures = []
    for waiting, size in SIZES:
        nodes = [node(f"n{i:05}", 8, held=range(8)) for i in range(size)]
        leases = [
            lease(f"l{i:05}-{c}", on=f"n{i:05}", cards=(c,), ends_in=60.0 * (i + c + 1))
            for i in range(size)
            for c in range(8)
        ]
        jobs = [
            job(f"j{i:05}", gpus=1 << (i % 4), waited=float(waiting - i), user=f"u{i % 50}")
            for i in range(waiting)
        ]
        seen = snapshot(jobs, nodes, leases, [offer(gpus=8)])
        times = []
        for _ in range(5):
            start = time.perf_counter()
            made = plan(seen, Policy(), ConstantWait(10_000_000))
            times.append(time.perf_counter() - start)
        assert len(made.verdicts) == waiting
        assert not made.actions
        figures.append(Figure(f"round, {waiting} waiting x {size} nodes", min(times) * 1e3, "ms"))
    return figures
