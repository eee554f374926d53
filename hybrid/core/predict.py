"""How long will it run? A distribution learned from history, with no clock of its own.

Every job belongs to several groups of like jobs, from narrow (this user, this script, this size)
to wide (everything). A group keeps its latest runs. Those still running, stopped or lost are
right-censored: what is known is only that they ran *at least* so long. Leaving them out would
favour short runs, which end first; the Kaplan-Meier estimate shares their weight among the longer
runs instead (redistribution to the right, Efron 1967). Recent runs weigh more. The narrow group
takes the share n / (n + `PRIOR_RUNS`) of the whole, the next one the same share of the rest, and
so on (stick-breaking), so that a job seen for the first time is predicted by its user, a user seen
for the first time by everybody.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: Runs of a group that count: the last so many that started, and that ended.
STARTED_RUNS, ENDED_RUNS = 100, 20
#: Each run weighs this share of the next younger one. A group of one size without a common limit
#: mixes more kinds of jobs, so more of its runs must count.
RECENCY, MIXED_RECENCY = 0.95, 0.975
#: A group with so many (weighted) runs takes half of what is left for it.
PRIOR_RUNS = 3.0
#: What is left for wider groups when it is no longer worth asking them.
NEGLIGIBLE = 0.02
#: A run longer than every run that ended is taken to end after its time so far × this.
BEYOND = 2.0
#: How much the point estimate cares for being within `NEAR_MISS`, beside within 2×.
NEAR_MISS, NEAR_MISS_WEIGHT = 15.0, 0.5
#: How far an outcome moves the user's own interval and everybody's, in log seconds, and the
#: bounds of that movement.
USER_STEP, COMMON_STEP = 0.3, 0.01
MOST_STRETCH, LEAST_STRETCH = 9.0, 0.3
#: Limits are enforced late: by this share of the limit, and so many seconds.
LATE_SHARE, LATE_SECONDS = 1.05, 60.0
#: The interval leaves out this share at each end.
OUTSIDE = 0.1
#: Written into every saved state; another version is not read.
STATE_VERSION = 1

#: Runtime assumed while there is no history at all: an hour, give or take a factor of ten.
COLD_START = (360.0, 1200.0, 3600.0, 10800.0, 36000.0)


#: What like jobs share; the first part says what kind of likeness.
Group = tuple[Any, ...]


class PredictorStateError(Exception):
    """A saved state of another version, or none at all."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of a job before it runs. "" , 0 and None mean *unknown*."""

    user: str = ""
    gpus: int = 0
    partition: str = ""
    cpus: float = 0.0
    memory_bytes: int = 0
    gpu_model: str | None = None
    limit_seconds: float | None = None
    estimate_seconds: float | None = None
    stem: str = ""
    package: str = ""

    def groups(self) -> list[Group]:
        """The groups of like jobs, narrowest first."""
        user, gpus, limit = self.user, self.gpus, self.limit_seconds
        found: list[Group] = []
        if self.package:
            found.append(("package", user, self.package, self.stem, gpus))
        if self.stem:
            found.append(("stem", user, self.stem, gpus))
        if self.estimate_seconds is not None:
            found.append(("estimate", user, self.estimate_seconds, gpus))
        if self.partition or self.cpus or self.memory_bytes or self.gpu_model:
            shape = (self.partition, self.cpus, self.memory_bytes, self.gpu_model or "")
            found.append(("shape", user, gpus, limit, *shape))
        found.append(("size", user, gpus, limit))
        found.append(("user", user))
        found.append(("gpus", gpus, limit))
        found.append(("all",))
        return found


_TOKENS = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<hash>"),
    (re.compile(r"\d{4}-?\d{2}-?\d{2}([t_ -]?\d{2}[:-]?\d{2}([:-]?\d{2})?)?"), "<date>"),
    (re.compile(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}\b"), "<hash>"),
    (re.compile(r"(?:~|\.{1,2})?(?:/[^\s/'\"=]+)*/(?=[^\s/'\"]*)"), ""),
    (re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"), "<n>"),
)
_SPACE = re.compile(r"\s+")


def stem(text: str) -> str:
    """A command or job name without what changes from run to run: the folders of paths, numbers,
    hashes and dates. ``python /home/ada/train.py --seed 3`` → ``python train.py --seed <n>``."""
    found = text.strip().lower()
    for pattern, token in _TOKENS:
        found = pattern.sub(token, found)
    return _SPACE.sub(" ", found)[:200]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A distribution of the runtime: `seconds`, ascending, with weights that sum to 1.

    `runs` says how many past runs stand behind it (0: nothing is known), `group` the narrowest
    group that had any. `stretch` are the factors (> 0) by which the quantiles of rank `OUTSIDE` and
    1 - `OUTSIDE` are moved so that four of five outcomes fall between them.
    """

    seconds: tuple[float, ...]
    weights: tuple[float, ...]
    runs: int = 0
    group: str = ""
    stretch: tuple[float, float] = (1.0, 1.0)
    limit_seconds: float | None = None

    @property
    def mean(self) -> float:
        """For money."""
        return sum(s * w for s, w in zip(self.seconds, self.weights, strict=True))

    @property
    def point(self) -> float:
        """For people: the value most likely to be within 2× of the truth."""
        return _densest(self.seconds, self.weights)

    @property
    def interval(self) -> tuple[float, float]:
        """Four of five runs end between these two."""
        low = self.quantile(OUTSIDE) * self.stretch[0]
        high = self.quantile(1 - OUTSIDE) * self.stretch[1]
        if self.limit_seconds is not None:
            high = min(high, self.limit_seconds * LATE_SHARE + LATE_SECONDS)
        return min(low, high), high

    def quantile(self, rank: float) -> float:
        """Linear in log time between the middles of the samples' weights."""
        before = 0.0
        last: tuple[float, float] | None = None
        for second, weight in zip(self.seconds, self.weights, strict=True):
            middle = before + weight / 2
            if middle >= rank:
                if last is None:
                    return second
                reached, earlier = last
                if middle == reached:
                    return second
                part = (rank - reached) / (middle - reached)
                return earlier * math.pow(second / earlier, part)
            last = (middle, second)
            before += weight
        return self.seconds[-1]

    def given(self, elapsed: float) -> Prediction:
        """The same job, known to have run `elapsed` seconds already."""
        keep = [
            (s, w) for s, w in zip(self.seconds, self.weights, strict=True) if s > elapsed and w > 0
        ]
        total = sum(w for _, w in keep)
        if total <= 0:
            end = max(elapsed, 1.0) * BEYOND
            return Prediction((end,), (1.0,), self.runs, self.group)
        return Prediction(
            tuple(s for s, _ in keep),
            tuple(w / total for _, w in keep),
            self.runs,
            self.group,
            self.stretch,
            self.limit_seconds,
        )


def _densest(seconds: Sequence[float], weights: Sequence[float]) -> float:
    """The centre of the window of a factor 4 that holds most weight, with a smaller reward for
    what is at most `NEAR_MISS` away from it."""
    logs = [math.log(s) for s in seconds]
    cumulative = [0.0]
    for weight in weights:
        cumulative.append(cumulative[-1] + weight)
    count, half, far = len(logs), math.log(2), math.log(NEAR_MISS)
    best, best_centre, best_last = -1.0, logs[0], 0
    inside = low = high = 0
    for first in range(count):
        centre = logs[first] + half
        while inside < count and logs[inside] <= centre + half:
            inside += 1
        while logs[low] < centre - far:
            low += 1
        while high < count and logs[high] <= centre + far:
            high += 1
        near = cumulative[inside] - cumulative[first]
        value = near + NEAR_MISS_WEIGHT * (cumulative[high] - cumulative[low])
        if value > best + 1e-12:
            best, best_centre, best_last = value, centre, inside - 1
    # Move the window so that its samples sit in its middle.
    spare = best_centre + half - logs[best_last]
    return math.exp(best_centre - spare / 2)


@dataclass(slots=True, eq=False)
class _Run:
    """One run: `seconds` is None while it runs, `finished` False where it was cut short."""

    start: float
    seconds: float | None = None
    finished: bool = False


@dataclass(slots=True)
class _Group:
    recency: float
    started: deque[_Run] = field(default_factory=lambda: deque(maxlen=STARTED_RUNS))
    ended: deque[_Run] = field(default_factory=lambda: deque(maxlen=ENDED_RUNS))

    @classmethod
    def of(cls, key: Group) -> _Group:
        mixed = key[0] in ("size", "gpus") and key[-1] is None
        return cls(MIXED_RECENCY if mixed else RECENCY)

    def weighted(self) -> dict[_Run, float]:
        """Each run with the greater of its weights by start and by end."""
        found: dict[_Run, float] = {}
        weight = 1.0
        for run in reversed(self.started):
            found[run] = weight
            weight *= self.recency
        weight = 1.0
        for run in reversed(self.ended):
            if found.get(run, 0.0) < weight:
                found[run] = weight
            weight *= self.recency
        return found

    def samples(self, now: float) -> tuple[list[tuple[float, float]], float, int]:
        """Kaplan-Meier samples (seconds, weight summing to 1), the weighted number of runs, and
        the number of runs that ended."""
        rows = []
        total, ends = 0.0, 0
        for run, weight in self.weighted().items():
            seconds = run.seconds
            if seconds is None:
                seconds = now - run.start
            elif run.finished:
                ends += 1
            rows.append((max(seconds, 1e-3), not run.finished, weight))
            total += weight
        rows.sort()
        left, factor = total, 1.0 / total if total else 0.0
        samples: list[tuple[float, float]] = []
        for seconds, censored, weight in rows:
            if not censored:
                samples.append((seconds, weight * factor))
                left -= weight
                continue
            rest = left - weight
            if rest > 1e-9:
                factor *= left / rest
            else:
                samples.append((max(seconds, 1.0) * BEYOND, weight * factor))
            left = rest
        return samples, total, ends


@dataclass(slots=True)
class _Stretch:
    """Log factors on the low and the high quantile, moved after each outcome: outwards where the
    truth fell outside, a ninth of that inwards where it did not. In the long run `OUTSIDE` of the
    outcomes then fall outside at each end, whatever the history is like (quantile tracking,
    Angelopoulos et al. 2023)."""

    low: float = 0.0
    high: float = 0.0

    def learn(self, below: bool, above: bool, step: float) -> None:
        self.low -= step * (below - OUTSIDE)
        self.high += step * (above - OUTSIDE)
        self.low = max(-MOST_STRETCH, min(self.low, LEAST_STRETCH))
        self.high = max(-LEAST_STRETCH, min(self.high, MOST_STRETCH))


@dataclass(slots=True)
class Past:
    """What is known of past and running jobs. Deterministic: the same calls give the same
    answers. Call `predict` before the job is `started`; `ended` closes it."""

    _groups: dict[Group, _Group] = field(default_factory=dict)
    _running: dict[str, tuple[_Run, Traits]] = field(default_factory=dict)
    _common: _Stretch = field(default_factory=_Stretch)
    _of_user: dict[str, _Stretch] = field(default_factory=dict)

    def predict(self, traits: Traits, now: float) -> Prediction:
        """The distribution of the whole runtime of a job that starts at `now`."""
        rest, merged, runs, narrowest = 1.0, [], 0, ""
        for key in traits.groups():
            group = self._groups.get(key)
            if group is None:
                continue
            samples, weight, ends = group.samples(now)
            if not ends:
                continue
            if not narrowest:
                narrowest, runs = str(key[0]), ends
            share = rest * weight / (weight + PRIOR_RUNS)
            merged += [(seconds, part * share) for seconds, part in samples]
            rest -= share
            if rest < NEGLIGIBLE:
                break
        if not merged:
            return self._cold(traits)
        limit = traits.limit_seconds
        if limit is not None:
            merged = [(min(seconds, limit), weight) for seconds, weight in merged]
        merged.sort()
        scale = 1.0 / (1.0 - rest)
        return Prediction(
            tuple(seconds for seconds, _ in merged),
            tuple(weight * scale for _, weight in merged),
            runs,
            narrowest,
            self._calibrated(traits.user),
            limit,
        )

    def _cold(self, traits: Traits) -> Prediction:
        """No history: the user's own estimate or limit where given."""
        given = traits.estimate_seconds or traits.limit_seconds
        middle = given / 2 if traits.estimate_seconds is None and given else given
        scale = (middle or COLD_START[2]) / COLD_START[2]
        seconds = [s * scale for s in COLD_START]
        if traits.limit_seconds is not None:
            seconds = [min(s, traits.limit_seconds) for s in seconds]
        return Prediction(tuple(seconds), (0.2,) * len(COLD_START))

    def started(self, job_id: str, traits: Traits, now: float) -> None:
        run = _Run(now)
        self._running[job_id] = (run, traits)
        for key in traits.groups():
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = _Group.of(key)
            group.started.append(run)

    def ended(
        self, job_id: str, seconds: float, finished: bool, forecast: Prediction | None = None
    ) -> None:
        """`finished` is True where the job came to its own end (well or in failure), False where
        it was stopped, timed out or was lost. `forecast` is what was said before it ran."""
        found = self._running.pop(job_id, None)
        if found is None:
            return
        run, traits = found
        run.seconds, run.finished = seconds, finished
        for key in traits.groups():
            self._groups[key].ended.append(run)
        if forecast is not None and forecast.runs:
            self._learn_outcome(traits.user, forecast, seconds)

    # ------------------------------------------------------------------ calibration

    def _learn_outcome(self, user: str, forecast: Prediction, seconds: float) -> None:
        low, high = forecast.interval
        below, above = seconds < low, seconds > high
        self._own(user).learn(below, above, USER_STEP)
        self._common.learn(below, above, COMMON_STEP)

    def _own(self, user: str) -> _Stretch:
        """The user's factors; a new user begins with everybody's."""
        own = self._of_user.get(user)
        if own is None:
            own = self._of_user[user] = _Stretch(self._common.low, self._common.high)
        return own

    def _calibrated(self, user: str) -> tuple[float, float]:
        own = self._of_user.get(user, self._common)
        return math.exp(own.low), math.exp(own.high)

    # ------------------------------------------------------------------ saving

    def dump(self) -> dict[str, Any]:
        """The whole state as JSON values."""
        runs: dict[_Run, int] = {}

        def number(run: _Run) -> int:
            return runs.setdefault(run, len(runs))

        groups = [
            [list(key), [number(r) for r in g.started], [number(r) for r in g.ended]]
            for key, g in self._groups.items()
        ]
        running = [[job, number(run), asdict(t)] for job, (run, t) in self._running.items()]
        return {
            "version": STATE_VERSION,
            "groups": groups,
            "running": running,
            "runs": [[run.start, run.seconds, run.finished] for run in runs],
            "common": [self._common.low, self._common.high],
            "of_user": {user: [own.low, own.high] for user, own in self._of_user.items()},
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Past:
        """The state that `dump` gave. Raises `PredictorStateError` for any other version."""
        version = state.get("version")
        if version != STATE_VERSION:
            raise PredictorStateError(
                f"the saved predictor has version {version}, this Hybrid reads {STATE_VERSION}; "
                "learn it anew from the history"
            )
        past = cls()
        runs = [_Run(*row) for row in state["runs"]]
        for key, started, ended in state["groups"]:
            group = past._groups[tuple(key)] = _Group.of(tuple(key))
            group.started.extend(runs[i] for i in started)
            group.ended.extend(runs[i] for i in ended)
        for job, run, traits in state["running"]:
            past._running[job] = (runs[run], Traits(**traits))
        past._common = _Stretch(*state["common"])
        past._of_user = {user: _Stretch(*own) for user, own in state["of_user"].items()}
        return past
