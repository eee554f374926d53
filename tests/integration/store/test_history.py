"""The installation's own past, read back as a history."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from sqlmodel import Session

from hybrid.core.lifecycle import AttemptState
from hybrid.core.model import Gang, Requirements
from hybrid.store import jobs
from hybrid.store.codec import dump_gang, dump_requirements
from hybrid.store.engine import Store
from hybrid.store.history import history
from hybrid.traces.read import read_trace
from hybrid.traces.record import Ended
from tests.integration.store.test_store import NOW, a_job, a_lease
from tests.traces.test_cli import hybrid

GANG = Gang(nodes=2, gpus_per_node=4, cpus=8.0, gpu_model="A100")


def attempt(
    session: Session, job_id: str, after: float, seconds: float, state: AttemptState
) -> None:
    job = jobs.find_job(session, job_id)
    assert job is not None
    start = NOW + timedelta(seconds=after)
    made = jobs.open_attempt(session, job, "lease-1", start)
    jobs.move_attempt(session, made, AttemptState.RUNNING, "accepted", start)
    jobs.move_attempt(session, made, state, "ended", start + timedelta(seconds=seconds))


def filled(store: Store) -> None:
    wishes = dump_requirements(Requirements(GANG, max_runtime_seconds=600.0))
    with store.write() as session:
        session.add(a_lease(gang=dump_gang(GANG)))
        for name in ("twice", "long", "waiting"):
            jobs.add_job(session, a_job(name, requirements=wishes))
        attempt(session, "twice", 60, 30, AttemptState.LOST)
        attempt(session, "twice", 200, 100, AttemptState.SUCCEEDED)
        attempt(session, "long", 300, 601, AttemptState.STOPPED)


def test_each_attempt_that_ended_is_a_run(store: Store) -> None:
    filled(store)
    with store.read() as session:
        rows = list(history(session))
    assert [(r.id, r.runtime_seconds, r.ended) for r in rows] == [
        ("twice", 30.0, Ended.LOST),
        ("twice-attempt2", 100.0, Ended.COMPLETED),
        ("long", 601.0, Ended.TIMEOUT),
    ]
    first, second, _ = rows
    assert (first.gpus, first.nodes, first.cpus, first.gpu_model) == (8, 2, 16.0, "A100")
    assert first.submit == NOW.timestamp()
    assert second.submit == NOW.timestamp() + 200
    assert first.name == "python train.py"


def test_it_is_exported_by_the_command(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "ours.csv"
    ended = hybrid("trace", "export", str(out), "--home", str(home))
    assert ended.returncode == 3
    assert "no installation in" in ended.stderr
    state = home / "hybrid.sqlite"
    home.mkdir()
    store = Store(f"sqlite:///{state}")
    store.migrate()
    filled(store)
    store.dispose()
    told = hybrid("trace", "export", str(out), "--home", str(home))
    assert told.stdout == f"{out}: 3 jobs\n", told.stderr
    assert read_trace(out)[1].kept == 3
