"""A gateway over a real store, without a controller: the tests move the jobs themselves."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest
import uvicorn

from hybrid import api
from hybrid.core.model import Requirements
from hybrid.core.policy import JobPolicy
from hybrid.gateway.app import create_app
from hybrid.gateway.deps import GatewayDeps
from hybrid.policy.schema import PolicyError
from hybrid.service.deps import SystemClock
from hybrid.settings import Settings
from hybrid.store.engine import Store
from hybrid.store.logs import LogStore
from hybrid.store.packages import PackageStore


@dataclass
class NoController:
    """Answers what the gateway asks when nothing plans: pool of one node, one policy."""

    ray_version: str = "2.60.0"
    ray_commit: str = "b7f4259e944bf6959f721b106adc366ddfa0c356"
    orchestrator_id: str = "hybrid-test"
    largest: int = 8
    woken: list[str | None] = field(default_factory=list)

    def wake(self, lease_id: str | None = None) -> None:
        self.woken.append(lease_id)

    def why_never(self, requirements: Requirements) -> str | None:
        fits = requirements.gang.gpus_per_node <= self.largest
        return None if fits else f"no place can ever hold this gang; the largest is {self.largest}"

    def job_defaults(self) -> JobPolicy:
        return JobPolicy()

    def expected_starts(self) -> Mapping[str, datetime]:
        return {}

    def sentences(self) -> Mapping[str, str]:
        return {}

    def status(self) -> api.StatusOut:
        raise AssertionError("not asked in these tests")

    def pool(self) -> api.PoolOut:
        card = api.CardOut(
            uuid="GPU-1", index=0, model="T4", memory_bytes=1, held_by=None, unusable=None
        )
        node = api.NodeOut(
            id="n1", address="n1", cpus=4, free_cpus=4, memory_bytes=1, cordoned=None,
            draining=False, cards=[card],
        )  # fmt: skip
        return api.PoolOut(available=True, note="", nodes=[node])

    def offers(self) -> Sequence[api.OfferOut]:
        return []

    def providers(self) -> Sequence[api.ProviderOut]:
        return []

    def check_provider(self, name: str) -> Sequence[api.CheckLineOut] | None:
        return None

    def leaks(self, terminate: bool) -> Sequence[api.LeakOut]:
        return []

    def policies(self) -> Sequence[api.PolicyOut]:
        return []

    def policy(self, name: str) -> api.PolicyOut:
        raise PolicyError(f"no policy named {name!r}")

    def validate_policy(self, wanted: api.PolicyIn) -> api.PolicyOut:
        raise PolicyError(f"{wanted.name}, line 1: wrong")

    def use_policy(self, wanted: api.PolicyIn, by: str) -> api.PolicyOut:
        raise PolicyError(f"{wanted.name}, line 1: wrong")


@dataclass
class Gateway:
    url: str
    deps: GatewayDeps
    controller: NoController


@contextmanager
def serving(store: Store, folder: Path, **changes: object) -> Iterator[Gateway]:
    """A real server on a free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    settings = Settings(home=folder, port=port, **changes)  # type: ignore[arg-type]
    clock, controller = SystemClock(), NoController()
    deps = GatewayDeps(
        store=store,
        settings=settings,
        clock=clock,
        packages=PackageStore(settings.packages_dir, settings.package_limit_bytes),
        logs=LogStore(settings.logs_dir, clock),
        controller=controller,
        session_name="session-test",
    )
    config = uvicorn.Config(create_app(deps), host="127.0.0.1", port=port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield Gateway(f"http://127.0.0.1:{port}", deps, controller)
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def gateway(store: Store, tmp_path: Path) -> Iterator[Gateway]:
    with serving(store, tmp_path) as running:
        yield running


@pytest.fixture
def guarded(store: Store, tmp_path: Path) -> Iterator[Gateway]:
    """The same with tokens required."""
    with serving(store, tmp_path, auth="on") as running:
        yield running


@pytest.fixture
def token_for(store: Store) -> Callable[..., str]:
    from hybrid.store.tokens import create_token

    def make(user: str, role: str = "user") -> str:
        with store.write() as session:
            return create_token(session, user, role, SystemClock().now())[1]

    return make
