"""Start and end an installation on this machine, and look for leaks without a controller."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from hybrid.cli.client import Client, CliError
from hybrid.cli.output import note
from hybrid.settings import Settings

if TYPE_CHECKING:
    from hybrid.store.engine import Store

START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Up:
    """The flags of `hybrid up`."""

    fake_gpus: str
    num_cpus: int | None
    node_ip: str | None
    ray_address: str
    ray_token: str
    no_pool: bool
    policy: str


def start(settings: Settings, flags: Up) -> None:
    """Head first, then `hybrid serve`. Up already: says so."""
    home = settings.state_dir
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = _read(home)
    if record is not None and _alive(record):
        note(f"already up: {record['url']} (hybrid down ends it)")
        return
    _check_port(settings)
    address, token = _pool(home, flags)
    secret = _first_token(settings)
    process = _serve(settings, address, token, flags.policy)
    url = f"http://{_reachable(settings.host)}:{settings.port}"
    _write(home, process, url, secret)
    _wait(process, url, home)
    if secret or not settings.auth_required:
        _wait_for_pool(Client(url, secret or ""))
    note(f"Hybrid is up: {url}  (state in {home})")
    note(f"  export RAY_API_SERVER_ADDRESS={url}")
    if secret:
        note(f"  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN={secret}")
        note("  (an admin's token, shown once; make one per person: hybrid token create NAME)")
    if address and not flags.ray_address:
        note("Other nodes join the pool with:")
        note(f"  RAY_AUTH_MODE=token RAY_AUTH_TOKEN={token} ray start --address={address}")


def _check_port(settings: Settings) -> None:
    from hybrid.bootstrap import PortTaken, check_port

    try:
        check_port(settings)
    except PortTaken as error:
        raise CliError(str(error)) from error


def _pool(home: Path, flags: Up) -> tuple[str, str]:
    """The address and token of the standing cluster, started where none was named."""
    from hybrid.pool.standing import LOOPBACK_IP, HeadFailed, read_head, start_head

    if flags.no_pool:
        return "", ""
    if flags.ray_address:
        return flags.ray_address, flags.ray_token
    head = read_head(home)
    if head is None or not head.alive():
        note("starting the pool's Ray head …")
        try:
            head = start_head(home, flags.node_ip or LOOPBACK_IP, flags.fake_gpus, flags.num_cpus)
        except (HeadFailed, ValueError) as error:
            raise CliError(str(error), f"details in {home / 'ray-head.log'}") from error
    return head.address, head.token


def _first_token(settings: Settings) -> str | None:
    if not settings.auth_required:
        return None
    from hybrid.bootstrap import first_admin_token

    return first_admin_token(settings)


def _serve(
    settings: Settings, ray_address: str, ray_token: str, policy: str
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "HYBRID_HOME": str(settings.state_dir),
        "HYBRID_HOST": settings.host,
        "HYBRID_PORT": str(settings.port),
        "HYBRID_RAY_ADDRESS": ray_address,
        "HYBRID_RAY_TOKEN": ray_token,
        "HYBRID_POLICY": policy or settings.policy,
    }
    with (settings.state_dir / "serve.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "hybrid.cli.main", "serve"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _wait(process: subprocess.Popen[bytes], url: str, home: Path) -> None:
    client, deadline = Client(url, ""), time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CliError(f"hybrid serve ended: {_tail(home)}", f"details in {home / 'serve.log'}")
        try:
            client.version()
            return
        except CliError as error:
            if error.exit_code != 5:  # it answers, and asks for a token
                return
        time.sleep(0.1)
    raise CliError("the gateway did not answer in time", f"details in {home / 'serve.log'}")


def _wait_for_pool(client: Client) -> None:
    """Until the controller has looked at the pool once; what it saw is said if it is bad."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        status = client.get("/status")
        if status["last_tick_at"] is not None and status["pool_available"]:
            return
        time.sleep(0.2)
    note(f"warning: the pool cannot be asked yet: {status['pool_note']}")


def stop(settings: Settings, keep_leases: bool) -> None:
    """Stop jobs and release leases through the API, then end the processes that `up` started."""
    from hybrid.pool.agent import lease_folder
    from hybrid.pool.standing import stop_head

    home = settings.state_dir
    record = _read(home)
    if record is None:
        note(f"nothing to end: no `hybrid up` is recorded in {home}")
        stop_head(home)
        return
    orchestrator_id = ""
    if _alive(record):
        client = Client(record["url"], record.get("token") or _token())
        orchestrator_id = client.get("/status")["orchestrator_id"]
        if not keep_leases:
            _empty(client)
        _end(record)
    else:
        note("the controller was not running, so no lease was released: leases on the pool end at")
        note("their fences; `hybrid leaks --terminate` ends rented machines")
    if not keep_leases:
        if stop_head(home):
            note("the pool's Ray head ended")
        if orchestrator_id:
            shutil.rmtree(lease_folder(orchestrator_id), ignore_errors=True)
    (home / "up.json").unlink(missing_ok=True)
    note(
        "Hybrid is down"
        + (" (leases kept: `hybrid up` takes them up again)" if keep_leases else "")
    )


def _token() -> str:
    return os.environ.get("HYBRID_TOKEN") or os.environ.get("RAY_AUTH_TOKEN") or ""


def _empty(client: Client) -> None:
    """Until no job is live and no lease is open, or time is up."""
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    client.put("/policy", {"name": "draining", "text": '[burst]\nstrategy = "never"\n'})
    live = ["queued", "starting", "running"]
    while time.monotonic() < deadline:
        jobs = client.get("/jobs", state=live, limit=10_000)
        for job in jobs:
            client.post(f"/jobs/{job['id']}/stop")
        leases = client.get("/leases")
        for lease in leases:
            if lease["state"] == "ready" and lease["job_id"] is None:
                client.post(f"/leases/{lease['id']}/release")
        if not jobs and not leases:
            return
        time.sleep(0.3)
    raise CliError(
        f"{len(client.get('/leases'))} leases are still open after {STOP_TIMEOUT_SECONDS:g} s",
        "hybrid lease ls says what they wait for; hybrid down --keep-leases ends Hybrid anyway",
    )


def _end(record: Mapping[str, Any]) -> None:
    process = psutil.Process(record["pid"])
    process.terminate()
    try:
        process.wait(15)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(10)


@contextmanager
def _own_store(settings: Settings) -> Iterator[Store]:
    """The database of this installation, opened beside whatever else uses it."""
    from hybrid.store.engine import Store

    if not settings.database_url and not (settings.state_dir / "hybrid.sqlite").exists():
        raise CliError(f"no installation in {settings.state_dir}", "name it with --home", 3)
    store = Store(settings.store_url)
    try:
        yield store
    finally:
        store.dispose()


def local_leaks(settings: Settings, terminate: bool) -> list[dict[str, object]]:
    """Ask the providers and the database directly."""
    from hybrid.cloud.sweeper import find_leaks
    from hybrid.service.providers import load_providers
    from hybrid.store.leases import leases_in
    from hybrid.store.marks import orchestrator_id

    with _own_store(settings) as store, store.write() as session:
        own_id = orchestrator_id(session)
        live = frozenset(lease.id for lease in leases_in(session))
    providers = load_providers().providers
    found = find_leaks(providers.values(), own_id, live, datetime.now(UTC))
    if terminate:
        for leak in found:
            providers[leak.provider].terminate(leak.instance.id)
    return [
        {
            "provider": leak.provider,
            "instance_id": leak.instance.id,
            "lease_id": leak.lease_id,
            "state": str(leak.instance.state),
            "age_seconds": leak.age_seconds and round(leak.age_seconds),
            "detail": f"{leak.instance.instance_type} in {leak.instance.zone}",
            "terminated": terminate,
        }
        for leak in found
    ]


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::", "") else host


def _write(home: Path, process: subprocess.Popen[bytes], url: str, secret: str | None) -> None:
    record = {
        "pid": process.pid,
        "created": psutil.Process(process.pid).create_time(),
        "url": url,
        "token": secret or "",
    }
    path = home / "up.json"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as handle:
        json.dump(record, handle)


def _read(home: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((home / "up.json").read_text())
        return found
    except FileNotFoundError:
        return None


def _alive(record: Mapping[str, Any]) -> bool:
    """The very process that we started, not another that got its number."""
    try:
        process = psutil.Process(record["pid"])
        return (
            bool(abs(process.create_time() - record["created"]) < 1.0)
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.NoSuchProcess:
        return False


def _tail(home: Path) -> str:
    lines = (home / "serve.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "without a word"


def export_history(settings: Settings, out: Path) -> int:
    """Write the jobs of this installation's database as a history; the number written."""
    from hybrid.store.history import history
    from hybrid.traces.write import write_trace

    with _own_store(settings) as store, store.read() as session:
        return write_trace(out, history(session))
