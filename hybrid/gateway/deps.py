"""What the gateway is wired with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from hybrid import api
from hybrid.core.model import Requirements
from hybrid.core.policy import JobPolicy
from hybrid.ports import Clock
from hybrid.settings import Settings
from hybrid.store.engine import Store
from hybrid.store.logs import LogStore
from hybrid.store.packages import PackageStore


class ControllerView(Protocol):
    """What the gateway asks of the controller (`hybrid.service.facade` implements it)."""

    ray_version: str
    ray_commit: str
    orchestrator_id: str

    def wake(self, lease_id: str | None = None) -> None:
        """Something changed: plan soon, and have that lease's driver look."""

    def why_never(self, requirements: Requirements) -> str | None:
        """None if the gang can ever fit somewhere, else the sentence for the user."""

    def job_defaults(self) -> JobPolicy: ...
    def expected_starts(self) -> Mapping[str, datetime]: ...
    def sentences(self) -> Mapping[str, str]:
        """Job id → why it waits, newer than what its row says."""

    def status(self) -> api.StatusOut: ...
    def pool(self) -> api.PoolOut: ...
    def offers(self) -> Sequence[api.OfferOut]: ...
    def providers(self) -> Sequence[api.ProviderOut]: ...
    def check_provider(self, name: str) -> Sequence[api.CheckLineOut] | None: ...
    def leaks(self, terminate: bool) -> Sequence[api.LeakOut]: ...
    def policies(self) -> Sequence[api.PolicyOut]: ...
    def policy(self, name: str) -> api.PolicyOut: ...
    def validate_policy(self, wanted: api.PolicyIn) -> api.PolicyOut: ...
    def use_policy(self, wanted: api.PolicyIn, by: str) -> api.PolicyOut: ...


@dataclass(frozen=True, slots=True)
class GatewayDeps:
    store: Store
    settings: Settings
    clock: Clock
    packages: PackageStore
    logs: LogStore
    controller: ControllerView
    session_name: str
