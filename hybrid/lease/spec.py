"""What a guard is told and what it answers (`spec.json`, `state.json`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Literal

#: The least that Ray accepts is 75 MB.
MINIMUM_OBJECT_STORE_BYTES = 80_000_000
OBJECT_STORE_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class LeaseSpec:
    """One machine's part of a lease. `cards` None leaves CUDA_VISIBLE_DEVICES as it is (a rented
    machine whose cards are all ours); `expires_at` is the fence in seconds since the epoch."""

    lease_id: str
    orchestrator_id: str
    head: bool
    node_ip: str
    head_address: str | None
    cards: tuple[str, ...] | None
    gpus: int
    cpus: float
    memory_bytes: int
    token: str
    expires_at: float
    python: str
    object_store_bytes: int = MINIMUM_OBJECT_STORE_BYTES
    resources: Mapping[str, float] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Deterministic: the same spec gives the same text."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class GuardState:
    """Where a guard stands. `processes_left` counts what could not be killed at the end."""

    phase: Literal["starting", "up", "ended"]
    reason: str = ""
    dashboard_url: str | None = None
    gcs_address: str | None = None
    isolation: str = ""
    processes_left: int = 0

    @classmethod
    def from_mapping(cls, data: Mapping[str, object]) -> GuardState:
        """From a parsed `state.json`. An unknown phase is a `ValueError`."""
        phase = data.get("phase")
        if phase not in ("starting", "up", "ended"):
            raise ValueError(f"guard state with phase {phase!r}: {data!r}")
        url, gcs, left = data.get("dashboard_url"), data.get("gcs_address"), 0
        if isinstance(found := data.get("processes_left"), int):
            left = found
        return cls(
            phase=phase,
            reason=str(data.get("reason", "")),
            dashboard_url=None if url is None else str(url),
            gcs_address=None if gcs is None else str(gcs),
            isolation=str(data.get("isolation", "")),
            processes_left=left,
        )


def guard_source() -> str:
    """The guard's own text, to be written to a machine."""
    return resources.files("hybrid.lease").joinpath("guard.py").read_text()


def object_store_bytes(memory_bytes: float) -> int:
    """The part of a lease's memory that Ray's object store gets."""
    return max(MINIMUM_OBJECT_STORE_BYTES, int(memory_bytes * OBJECT_STORE_SHARE))
