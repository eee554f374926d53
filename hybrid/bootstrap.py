"""The one place that chooses the real parts and wires them together."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import re
import signal
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from pathlib import Path

import structlog
import uvicorn
import uvloop
from starlette.types import ASGIApp

from hybrid.cloud.backend import CloudBackend
from hybrid.core.model import LeaseKind
from hybrid.gateway.app import create_app
from hybrid.gateway.deps import GatewayDeps
from hybrid.lease.cluster import RayClusterClient
from hybrid.pool.backend import PoolBackend
from hybrid.pool.client import NoPool, PoolClient
from hybrid.ports import LeaseBackend, PoolInventory
from hybrid.service.checkpoints import Checkpoints
from hybrid.service.controller import Controller
from hybrid.service.deps import ServiceDeps, SystemClock
from hybrid.service.facade import Facade
from hybrid.service.leader import leadership_of
from hybrid.service.policies import PoliciesInForce
from hybrid.service.providers import load_providers, offers_of
from hybrid.settings import Settings
from hybrid.store.engine import Store
from hybrid.store.ids import new_id
from hybrid.store.jobs import packages_needed
from hybrid.store.logs import LogStore
from hybrid.store.marks import orchestrator_id
from hybrid.store.packages import PackageStore
from hybrid.store.tokens import create_token, tokens

log = structlog.get_logger(__name__)


class PortTaken(Exception):
    """Another program listens on the gateway's port: stop it, or choose another with --port."""


@dataclass(frozen=True, slots=True)
class Application:
    """Everything of one process, wired."""

    settings: Settings
    store: Store
    controller: Controller
    app: ASGIApp
    pool: PoolClient | None


def build(settings: Settings) -> Application:
    """Open the store, bring it to the newest schema, and wire the parts. Nothing runs yet."""
    home = settings.state_dir
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    clock, ray_version = SystemClock(), metadata.version("ray")
    store = Store(settings.store_url)
    store.migrate()
    with store.write() as session:
        own_id = orchestrator_id(session)
    checkpoint = Checkpoints(settings.crash_at)
    store.on_commit(checkpoint.steps)
    packages = PackageStore(settings.packages_dir, settings.package_limit_bytes)
    logs = LogStore(settings.logs_dir, clock)
    installed = load_providers()
    pool = (
        PoolClient(settings.ray_address, settings.ray_token, own_id, home / "bridge.log")
        if settings.ray_address
        else None
    )
    backends: dict[LeaseKind, LeaseBackend] = {
        LeaseKind.CLOUD: CloudBackend(
            installed.providers, own_id, clock, RayClusterClient, ray_version
        )
    }
    inventory: PoolInventory = NoPool()
    if pool is not None:
        inventory = pool
        backends[LeaseKind.POOL] = PoolBackend(pool, own_id, clock, RayClusterClient, ray_version)
    deps = ServiceDeps(
        store=store,
        clock=clock,
        orchestrator_id=own_id,
        ray_version=ray_version,
        pool=inventory,
        backends=backends,
        list_offers=offers_of(installed.providers),
        connect=RayClusterClient,
        logs=logs,
        packages=packages,
        policies=PoliciesInForce(store, settings.policies_dir, clock, settings.policy),
        checkpoint=checkpoint,
        collect_packages=lambda: _collect(store, packages),
        tick_seconds=settings.tick_seconds,
    )
    controller = Controller(deps, leadership_of(store, home))
    facade = Facade(controller, installed, ray_commit(), clock.now())
    gateway = GatewayDeps(
        store=store,
        settings=settings,
        clock=clock,
        packages=packages,
        logs=logs,
        controller=facade,
        session_name=new_id("session", clock.now()),
    )
    return Application(settings, store, controller, create_app(gateway), pool)


def _collect(store: Store, packages: PackageStore) -> None:
    with store.read() as session:
        needed = packages_needed(session)
    packages.collect(needed)


def ray_commit() -> str:
    """Read from Ray's files: importing Ray would cost this process a hundred megabytes."""
    spec = importlib.util.find_spec("ray")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        text = (Path(folder) / "_version.py").read_text()
        if found := re.search(r"commit\s*=\s*[\"']([0-9a-f]+)[\"']", text):
            return found.group(1)
    return "unknown"


def serve(settings: Settings) -> None:
    """Run gateway and controller until SIGTERM or SIGINT. Leases and jobs live on."""
    configure_logging()
    check_port(settings)
    application = build(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(application))


async def _run(application: Application) -> None:
    settings = application.settings
    server = uvicorn.Server(
        uvicorn.Config(
            application.app,
            host=settings.host,
            port=settings.port,
            log_level="warning",
            access_log=False,
            ws_max_size=16 * 1024 * 1024,
            timeout_graceful_shutdown=3,
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: setattr(server, "should_exit", True))
    controlling = asyncio.create_task(application.controller.run())
    log.info("serving", host=settings.host, port=settings.port, auth=settings.auth_required)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await server._serve()
    finally:
        controlling.cancel()
        await asyncio.gather(controlling, return_exceptions=True)
        if application.pool is not None:
            await application.pool.close()
        application.store.dispose()


def configure_logging() -> None:
    """One line per event on standard error."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def check_port(settings: Settings) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            raise PortTaken(
                f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; stop what "
                "listens there or choose another port with --port"
            ) from error


def first_admin_token(settings: Settings) -> str | None:
    """The secret of a first admin token, made only while there is no token at all."""
    store = Store(settings.store_url)
    try:
        store.migrate()
        with store.write() as session:
            if tokens(session):
                return None
            now = SystemClock().now()
            expires = now + timedelta(days=365)
            _, secret = create_token(session, "admin", "admin", now, "made by hybrid up", expires)
            return secret
    finally:
        store.dispose()
