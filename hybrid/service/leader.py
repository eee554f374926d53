"""One controller at a time: a file lock beside SQLite, an advisory lock in PostgreSQL."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO, Protocol

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from hybrid.store.engine import Store

_ADVISORY_KEY = 0x487962726964  # "Hybrid"


class Leadership(Protocol):
    def acquire(self) -> bool:
        """Become or stay the leader; asked before every round. False: another process leads."""

    def close(self) -> None: ...


class FileLeadership:
    """Holds `controller.lock` in the state folder; the kernel drops it when we die."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "controller.lock"
        self._file: IO[str] | None = None

    def acquire(self) -> bool:
        if self._file is not None:
            return True
        handle = self.path.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return False
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        self._file = handle
        return True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class AdvisoryLeadership:
    """A session-level advisory lock: it ends with its connection, which is checked each time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: Connection | None = None

    def acquire(self) -> bool:
        if self._connection is not None:
            try:
                self._connection.execute(text("SELECT 1"))
                self._connection.commit()
                return True
            except DBAPIError:
                self.close()
        connection = self._store.engine.connect()
        connection.detach()  # not back to the pool, where it would go on holding the lock
        query = text("SELECT pg_try_advisory_lock(:key)")
        if not connection.execute(query, {"key": _ADVISORY_KEY}).scalar():
            connection.close()
            return False
        connection.commit()
        self._connection = connection
        return True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def leadership_of(store: Store, state_dir: Path) -> Leadership:
    """The kind of lock that fits the database."""
    if store.engine.dialect.name == "sqlite":
        return FileLeadership(state_dir)
    return AdvisoryLeadership(store)
