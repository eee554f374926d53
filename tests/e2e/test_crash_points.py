"""kill -9 of gateway and controller at every persisted step and after every outside call; then a
restart: the job still ends well, ran to its end once, and nothing is left.

One installation per path serves all its points; the pool's head stays up throughout.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from hybrid.core.lifecycle import AttemptState, JobState, LeaseState
from tests.installation import Hybrid

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

#: What a job that succeeds passes on its way; the test below checks that none is missing.
STEPS = (
    "job:queued",
    "job:starting",
    "lease:booting",
    "lease:ready",
    "attempt:submitting",
    "job:running",
    "job:succeeded",
    "lease:releasing",
    "lease:released",
)
#: Steps at which the two paths are one: no backend has been asked, or none is.
ALIKE = ("job:queued", "attempt:submitting", "job:running")
POINTS = {
    "onprem": (*STEPS, "acquired:pool", "submitted", "release-asked:pool"),
    "cloud": (
        *(step for step in STEPS if step not in ALIKE),
        "acquired:cloud",
        "submitted",
        "release-asked:cloud",
    ),
}


def test_the_list_of_steps_is_complete() -> None:
    """Steps that are written in the same transaction as one of the list are the same point."""
    together = {
        "lease:requested": "job:starting",
        "lease:busy": "attempt:submitting",
        "attempt:running": "job:running",
        "attempt:succeeded": "job:succeeded",
    }
    states = [
        *(f"job:{s}" for s in JobState),
        *(f"attempt:{s}" for s in AttemptState),
        *(f"lease:{s}" for s in LeaseState),
    ]
    unhappy = {"job:failed", "job:stopped", "attempt:failed", "attempt:stopped", "attempt:lost"}
    assert set(states) - unhappy == set(STEPS) | set(together)
    assert set(together.values()) <= set(STEPS)


@pytest.fixture(scope="module")
def installation(make_hybrid: Callable[..., Hybrid]) -> Hybrid:
    return make_hybrid(max_wait=0, warm=0, fake="T4:2")


@pytest.mark.parametrize(
    ("place", "point"), [(place, point) for place, points in POINTS.items() for point in points]
)
def test_a_crash_loses_no_job_and_leaks_nothing(
    installation: Hybrid, place: str, point: str
) -> None:
    hybrid = installation
    job_id = f"{place}-{point.replace(':', '-')}"
    hybrid.kill_gateway()
    hybrid.up("--policy", "test", HYBRID_CRASH_AT=f"{point}")
    out = hybrid.home / f"{job_id}.ran"
    script = f"echo started >> {out}; sleep 1; echo ended >> {out}"
    flags = ["--entrypoint-num-gpus", "1", "--submission-id", job_id]
    metadata = json.dumps({"hybrid.place": place})
    hybrid.run(
        "ray", "job", "submit", "--no-wait", *flags, "--metadata-json", metadata,
        "--", "bash", "-c", script, check=False,
    )  # fmt: skip
    hybrid.wait_until_dead(60)
    hybrid.up("--policy", "test")
    assert hybrid.ended(job_id) == "SUCCEEDED"
    assert out.read_text().count("ended") == 1
    detail = json.loads(hybrid.run("hybrid", "--json", "job", "show", job_id).stdout)
    assert detail["attempts"] == 1, detail["history"]
    deadline = time.monotonic() + 60
    while leases := json.loads(hybrid.run("hybrid", "--json", "lease", "ls").stdout):
        assert time.monotonic() < deadline, leases
        time.sleep(0.3)
    assert hybrid.run("hybrid", "leaks").stdout.strip() == ""
    past = json.loads(hybrid.run("hybrid", "--json", "lease", "ls", "--all").stdout)
    assert sum(lease["id"] == detail["lease_id"] for lease in past) == 1
