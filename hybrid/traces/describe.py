"""What a history holds: sizes, runtimes, load over time, users."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hybrid.core.units import SECONDS_PER_HOUR
from hybrid.traces.record import TraceJob

#: Shares at which runtimes and waits are shown.
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)

#: Bars of the picture of demand over time.
SLICES = 60


@dataclass(frozen=True, slots=True)
class Size:
    """The jobs of one number of cards."""

    gpus: int
    jobs: int
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class Description:
    """`demand` is the mean number of cards that would be busy in each of equal slices of the
    span if every job ran the moment it was submitted; `gpus_to_hold_all` its greatest value."""

    jobs: int
    gpu_jobs: int
    users: int
    projects: int
    first_submit: float
    span_hours: float
    gpu_hours: float
    mean_gpus: float
    sizes: tuple[Size, ...]
    runtime_quantiles: tuple[tuple[float, float], ...]
    wait_quantiles: tuple[tuple[float, float], ...]
    ended: tuple[tuple[str, int], ...]
    top_users: tuple[tuple[str, float], ...]
    demand: tuple[float, ...]

    @property
    def peak_gpus(self) -> float:
        return max(self.demand, default=0.0)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value at `share` of an ordered, non-empty list, linear between neighbours."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def describe(jobs: Iterable[TraceJob]) -> Description:
    """Jobs without cards count in `jobs` and `ended`; all else is about jobs with cards."""
    everything = list(jobs)
    cards = [job for job in everything if job.gpus > 0]
    hours: dict[str, float] = defaultdict(float)
    by_size: dict[int, list[float]] = defaultdict(list)
    for job in cards:
        work = job.gpus * job.runtime_seconds / SECONDS_PER_HOUR
        hours[job.user] += work
        by_size[job.gpus].append(work)
    submits = [job.submit for job in cards]
    first, last = (min(submits), max(submits)) if submits else (0.0, 0.0)
    total = sum(hours.values())
    waits = sorted(job.start - job.submit for job in cards if job.start is not None)
    runtimes = sorted(job.runtime_seconds for job in cards)
    span = (last - first) / SECONDS_PER_HOUR
    demand = _demand(cards, first, last)
    return Description(
        jobs=len(everything),
        gpu_jobs=len(cards),
        users=len(hours),
        projects=len({job.project for job in cards if job.project}),
        first_submit=first,
        span_hours=span,
        gpu_hours=total,
        mean_gpus=sum(demand) / SLICES,
        sizes=tuple(Size(g, len(w), sum(w)) for g, w in sorted(by_size.items())),
        runtime_quantiles=tuple((s, quantile(runtimes, s)) for s in SHARES) if runtimes else (),
        wait_quantiles=tuple((s, quantile(waits, s)) for s in SHARES) if waits else (),
        ended=tuple(sorted(Counter(str(job.ended) for job in everything).items())),
        top_users=tuple(sorted(hours.items(), key=lambda u: (-u[1], u[0]))[:10]),
        demand=demand,
    )


def _demand(jobs: Sequence[TraceJob], first: float, last: float) -> tuple[float, ...]:
    """Card-seconds per slice, spread exactly over the slices that a job touches."""
    if last <= first:
        return ()
    width = (last - first) / SLICES
    # Card-seconds that begin and end inside slices, and whole slices as a running difference.
    partial, whole = [0.0] * (SLICES + 1), [0.0] * (SLICES + 2)
    for job in jobs:
        begin = (job.submit - first) / width
        end = min((job.submit + job.runtime_seconds - first) / width, float(SLICES))
        head, tail = int(begin), int(end)
        if head == tail:
            partial[head] += (end - begin) * job.gpus
            continue
        partial[head] += (head + 1 - begin) * job.gpus
        partial[tail] += (end - tail) * job.gpus
        whole[head + 1] += job.gpus
        whole[tail] -= job.gpus
    running, demand = 0.0, []
    for slice_number in range(SLICES):
        running += whole[slice_number]
        demand.append(running + partial[slice_number])
    return tuple(demand)
