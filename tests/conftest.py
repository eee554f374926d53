"""Fixtures that every kind of test shares."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hybrid.store.engine import Store
from tests.installation import POLICY, Hybrid, free_port, processes_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A migrated store on real SQLite."""
    store = Store(f"sqlite:///{tmp_path / 'hybrid.sqlite'}")
    store.migrate()
    yield store
    store.dispose()


@pytest.fixture(scope="module")
def make_hybrid() -> Iterator[Callable[..., Hybrid]]:
    """Start installations; each is brought down and found gone at the end."""
    made: list[Hybrid] = []

    def make(max_wait: float = 3600, warm: float = 60, fake: str = "A100:2,T4:2") -> Hybrid:
        home = Path(tempfile.mkdtemp(prefix="hb-e2e-", dir="/tmp"))
        (home / "policies").mkdir()
        (home / "policies" / "test.toml").write_text(POLICY.format(max_wait=max_wait, warm=warm))
        hybrid = Hybrid(home=home, port=free_port(), cloud_dir=home / "cloud")
        made.append(hybrid)
        hybrid.up("--fake-gpus", fake, "--policy", "test")
        return hybrid

    yield make
    for hybrid in made:
        hybrid.down()
        left = processes_of(hybrid.home)
        shutil.rmtree(hybrid.home, ignore_errors=True)
        assert left == [], f"left behind: {left}"


@pytest.fixture(scope="module")
def hybrid(make_hybrid: Callable[..., Hybrid]) -> Hybrid:
    return make_hybrid()
