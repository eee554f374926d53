"""Fixtures that every kind of test shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hybrid.store.engine import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A migrated store on real SQLite."""
    store = Store(f"sqlite:///{tmp_path / 'hybrid.sqlite'}")
    store.migrate()
    yield store
    store.dispose()
