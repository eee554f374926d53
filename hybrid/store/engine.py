"""The database: one `Store` per process, SQLite (WAL) by default, PostgreSQL by address."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError
from sqlmodel import Session

#: How long a writer waits for another before `StoreBusy`.
BUSY_TIMEOUT_SECONDS = 10.0
_MIGRATIONS = Path(__file__).parent / "migrations"


class StoreBusy(Exception):
    """The database did not give us the write lock in time. Nothing was written: repeat the call.

    If it stays so, another program holds the database file open in a transaction.
    """


class Store:
    """Opens sessions. `write()` is serialised, so that a transaction never fails half-way.

    Listeners are called after each commit with the steps that the transaction recorded
    (``job:queued``, ``lease:booting`` …); the controller wakes on them and the crash test dies
    at them.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _engine(url)
        self._write_lock = threading.Lock()
        self._listeners: list[Callable[[tuple[str, ...]], None]] = []

    def on_commit(self, listener: Callable[[tuple[str, ...]], None]) -> None:
        self._listeners.append(listener)

    def migrate(self) -> None:
        """Bring the schema to the newest version."""
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        with self.engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one consistent state and never writes."""
        with Session(self.engine, expire_on_commit=False) as session:
            yield session
            session.expunge_all()  # rows stay readable after the session
            session.rollback()

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction: all of it on return, nothing of it on an exception."""
        if not self._write_lock.acquire(timeout=BUSY_TIMEOUT_SECONDS):
            raise StoreBusy(f"no write lock on {self.url} within {BUSY_TIMEOUT_SECONDS:g} s")
        try:
            with Session(self.engine, expire_on_commit=False) as session:
                session.info["steps"] = []
                if self.engine.dialect.name == "sqlite":
                    session.connection().exec_driver_sql("BEGIN IMMEDIATE")
                yield session
                session.commit()
                steps = tuple(session.info["steps"])
        except OperationalError as error:
            if "locked" in str(error.orig) or "busy" in str(error.orig):
                raise StoreBusy(f"{self.url} is locked by another program: {error.orig}") from error
            raise
        finally:
            self._write_lock.release()
        for listener in self._listeners:
            listener(steps)

    def dispose(self) -> None:
        self.engine.dispose()


def _engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        return create_engine(url, pool_pre_ping=True)
    engine = create_engine(
        url, connect_args={"timeout": BUSY_TIMEOUT_SECONDS, "check_same_thread": False}
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: object) -> None:
        # The driver's own implicit BEGIN is off: `write()` says BEGIN IMMEDIATE itself.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    return engine
