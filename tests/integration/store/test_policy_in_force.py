"""The policy in force while its file changes under it, and over restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybrid.policy.schema import PolicyError
from hybrid.service.deps import SystemClock
from hybrid.service.policies import PoliciesInForce
from hybrid.store.engine import Store
from hybrid.store.marks import last_policy


def in_force(store: Store, folder: Path, wanted: str = "") -> PoliciesInForce:
    return PoliciesInForce(store, folder, SystemClock(), wanted)


def test_a_file_that_breaks_while_we_run_changes_nothing(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[leases]\nwarm_seconds = 7\n")
    policies = in_force(store, tmp_path, "own")
    file.write_text("[leases]\nwarm_secs = 9\n")
    policies.reload()
    assert policies.current.policy.leases.warm_seconds == 7
    assert policies.error is not None
    for part in (str(file), "line 2", "warm_secs", "warm_seconds"):
        assert part in policies.error
    file.write_text("[leases]\nwarm_seconds = 9\n")
    policies.reload()
    assert (policies.current.policy.leases.warm_seconds, policies.error) == (9, None)
    with store.read() as session:
        last = last_policy(session)
    assert last is not None
    assert (last.by, last.sha256) == ("file changed", policies.current.sha256)


def test_a_file_that_vanishes_changes_nothing(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[leases]\nwarm_seconds = 7\n")
    policies = in_force(store, tmp_path, "own")
    file.unlink()
    policies.reload()
    assert (policies.current.policy.leases.warm_seconds, policies.error) == (7, None)
    assert in_force(store, tmp_path).current.policy.leases.warm_seconds == 7  # after a restart too


def test_a_wrong_policy_is_not_put_in_force(store: Store, tmp_path: Path) -> None:
    policies = in_force(store, tmp_path, "never")
    with pytest.raises(PolicyError):
        policies.use("mine", "[leases]\nwarm_seconds = -1\n", "ada")
    assert policies.current.name == "never"
