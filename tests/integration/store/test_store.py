"""The store on real SQLite (and PostgreSQL where the fixture can start it)."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import SQLModel, select

from hybrid.core.lifecycle import IllegalTransition, JobState, LeaseState
from hybrid.store import jobs, leases, ledger, marks, tokens
from hybrid.store.engine import Store
from hybrid.store.tables import Charge, Event, Job, Lease

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def a_job(job_id: str = "raysubmit_1", **changes: Any) -> jobs.NewJob:
    values: dict[str, Any] = {
        "id": job_id,
        "user": "ada",
        "project": "vision",
        "entrypoint": "python train.py",
        "requirements": {},
        "runtime_env": {},
        "user_metadata": {},
        "submitted_at": NOW,
    }
    return jobs.NewJob(**{**values, **changes})


def a_lease(lease_id: str = "lease-1", **changes: object) -> Lease:
    values: dict[str, object] = {
        "id": lease_id,
        "kind": "pool",
        "state": LeaseState.REQUESTED,
        "owner": "ada",
        "project": "vision",
        "environment": "",
        "token": "t",
        "cluster_token": "c",
        "units": 3,
        "rate_per_hour": Decimal("0.10"),
        "rate_currency": "USD",
        "rate_unit": "card",
        "rate_source": "test",
        "rate_as_of": NOW,
        "requested_at": NOW,
        "expires_at": NOW + timedelta(hours=1),
        "hard_end_at": NOW + timedelta(hours=24),
        "phase_started_at": NOW,
    }
    return Lease(**{**values, **changes})


def test_migrations_make_exactly_the_tables(store: Store) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": False})
        assert compare_metadata(context, SQLModel.metadata) == []


def test_an_acknowledged_job_is_there_and_its_id_is_taken(store: Store) -> None:
    with store.write() as session:
        jobs.add_job(session, a_job())
    with (
        pytest.raises(jobs.JobExists, match="raysubmit_1 already exists"),
        store.write() as session,
    ):
        jobs.add_job(session, a_job())
    with store.read() as session:
        found = jobs.find_job(session, "raysubmit_1")
        assert found is not None
        assert found.submitted_at == NOW
        assert found.submitted_at.tzinfo is not None


def test_an_illegal_transition_writes_nothing(store: Store) -> None:
    with store.write() as session:
        jobs.add_job(session, a_job())
    with store.read() as session:
        said = session.get_one(Job, "raysubmit_1").message

    def half_done() -> None:
        with store.write() as session:
            job = jobs.find_job(session, "raysubmit_1")
            assert job is not None
            job.message = "half done"
            jobs.move_job(session, job, JobState.SUCCEEDED, "no", NOW)

    with pytest.raises(IllegalTransition):
        half_done()
    with store.read() as session:
        job = jobs.find_job(session, "raysubmit_1")
        assert job is not None
        assert (job.state, job.message) == (JobState.QUEUED, said)
        assert len(session.exec(select(Event)).all()) == 1


def test_listeners_hear_the_steps_after_the_commit(store: Store) -> None:
    heard: list[tuple[str, ...]] = []
    store.on_commit(heard.append)
    with store.write() as session:
        jobs.add_job(session, a_job())
    assert heard == [("job:queued",)]


def test_charges_partition_the_lease_to_the_last_digit(store: Store) -> None:
    moments = [NOW + timedelta(seconds=s) for s in (7.123457, 20.000001, 47.3, 99.999999)]
    with store.write() as session:
        jobs.add_job(session, a_job())
        lease = a_lease(job_id="raysubmit_1")
        leases.add_lease(session, lease, "test")
        leases.move_lease(session, lease, LeaseState.BOOTING, "accepted", NOW)
        leases.move_lease(session, lease, LeaseState.READY, "up", moments[0])
        leases.move_lease(session, lease, LeaseState.BUSY, "job", moments[1])
        leases.move_lease(session, lease, LeaseState.RELEASING, "done", moments[2])
        leases.move_lease(session, lease, LeaseState.RELEASED, "gone", moments[3])
    with store.read() as session:
        lines = ledger.charges_of_lease(session, "lease-1")
        assert [line.kind for line in lines] == ["boot", "warm", "job", "teardown"]
        assert sum(line.seconds for line in lines) == Decimal("99.999999")
        whole = (Decimal("0.10") * 3 * Decimal("99.999999") / 3600).quantize(Decimal("1e-9"))
        assert sum(line.amount for line in lines) == whole


@pytest.mark.parametrize(
    ("acquired", "kinds"), [(False, []), (None, ["failed-launch", "teardown"])]
)
def test_a_launch_that_surely_gave_nothing_costs_nothing(
    store: Store, acquired: bool | None, kinds: list[str]
) -> None:
    with store.write() as session:
        lease = a_lease(acquired=acquired)
        leases.add_lease(session, lease, "test")
        end = NOW + timedelta(seconds=5)
        leases.move_lease(session, lease, LeaseState.RELEASING, "failed", end)
        leases.move_lease(session, lease, LeaseState.RELEASED, "gone", end + timedelta(seconds=1))
    with store.read() as session:
        assert [c.kind for c in session.exec(select(Charge))] == kinds


def test_tokens_are_hashed_expire_and_are_revoked(store: Store) -> None:
    with store.write() as session:
        token, secret = tokens.create_token(
            session, "ada", "user", NOW, expires_at=NOW + timedelta(1)
        )
    with store.read() as session:
        assert secret not in str(session.exec(select(type(token))).all())
        assert tokens.find_token(session, secret, NOW) is not None
        assert tokens.find_token(session, secret, NOW + timedelta(2)) is None
    with store.write() as session:
        assert tokens.revoke_token(session, token.id, NOW)
        assert not tokens.revoke_token(session, token.id, NOW)
    with store.read() as session:
        assert tokens.find_token(session, secret, NOW) is None
    with pytest.raises(ValueError, match="unknown role"), store.write() as session:
        tokens.create_token(session, "ada", "root", NOW)


def test_the_orchestrator_id_is_made_once(store: Store) -> None:
    with store.write() as session:
        first = marks.orchestrator_id(session)
    with store.write() as session:
        assert marks.orchestrator_id(session) == first


def test_a_locked_database_is_said_to_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybrid.store import engine

    monkeypatch.setattr(engine, "BUSY_TIMEOUT_SECONDS", 0.1)
    store = Store(f"sqlite:///{tmp_path / 'db.sqlite'}")
    store.migrate()
    other = sqlite3.connect(tmp_path / "db.sqlite")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(engine.StoreBusy, match="locked"), store.write() as session:
        jobs.add_job(session, a_job())
    other.rollback()
    with store.write() as session:
        jobs.add_job(session, a_job())


def test_one_process_leads_at_a_time(store: Store, tmp_path: Path) -> None:
    from hybrid.service.leader import leadership_of

    first, second = leadership_of(store, tmp_path), leadership_of(store, tmp_path)
    assert first.acquire()
    assert not second.acquire()
    assert first.acquire()
    first.close()
    assert second.acquire()
    second.close()
