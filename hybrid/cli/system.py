"""hybrid up, down, serve, status, doctor, leaks, demo, explain, version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid import __version__
from hybrid.cli.client import FAILED, USAGE, CliError
from hybrid.cli.output import money, session_of, show

if TYPE_CHECKING:
    from hybrid.settings import Settings

Home = Annotated[
    Path | None, typer.Option(envvar="HYBRID_HOME", help="State folder.", show_default=False)
]
Port = Annotated[int | None, typer.Option(help="Gateway port; default 8265.")]
Host = Annotated[str | None, typer.Option(help="Gateway address; default 127.0.0.1.")]


def register(app: typer.Typer) -> None:
    """Put the commands at the top level."""
    for name, command in (
        ("up", up),
        ("down", down),
        ("serve", serve),
        ("status", status),
        ("doctor", doctor),
        ("leaks", leaks),
        ("demo", demo),
        ("explain", explain),
        ("version", version),
    ):
        app.command(name)(command)


def up(
    fake_gpus: Annotated[
        str, typer.Option(help="Cards to pretend: MODEL:COUNT[:GIB[:WATTS]],…")
    ] = "",
    num_cpus: Annotated[int | None, typer.Option(help="CPUs of the pool's head node.")] = None,
    node_ip: Annotated[
        str | None, typer.Option(help="Address of the head for other nodes; default: loopback.")
    ] = None,
    ray_address: Annotated[
        str, typer.Option(help="Use this Ray cluster (host:port) instead of starting a head.")
    ] = "",
    ray_token: Annotated[
        str, typer.Option(envvar="HYBRID_RAY_TOKEN", help="Token of that cluster.")
    ] = "",
    no_pool: Annotated[bool, typer.Option("--no-pool", help="Only rent; no own cards.")] = False,
    policy: Annotated[str, typer.Option(help="Policy to put in force.")] = "",
    host: Host = None,
    port: Port = None,
    home: Home = None,
) -> None:
    """Start the pool's Ray head, the gateway and the controller on this machine.

    Example: hybrid up --fake-gpus A100:2,T4:2
    """
    from hybrid.cli.local import Up, start

    start(
        _settings(home, host, port),
        Up(fake_gpus, num_cpus, node_ip, ray_address, ray_token, no_pool, policy),
    )


def down(
    home: Home = None,
    keep_leases: Annotated[
        bool, typer.Option("--keep-leases", help="Leave jobs and leases running.")
    ] = False,
) -> None:
    """End exactly what `hybrid up` started: jobs are stopped, leases released, machines returned.

    Example: hybrid down
    """
    from hybrid.cli.local import stop

    stop(_settings(home, None, None), keep_leases)


def serve(host: Host = None, port: Port = None, home: Home = None) -> None:
    """Run gateway and controller in the foreground (settings: HYBRID_… variables).

    Example: HYBRID_RAY_ADDRESS=10.0.0.1:6379 hybrid serve --host 0.0.0.0
    """
    from hybrid.bootstrap import PortTaken
    from hybrid.bootstrap import serve as run

    try:
        run(_settings(home, host, port))
    except PortTaken as error:
        raise CliError(str(error), "hybrid status shows whether it is Hybrid itself") from error


def status(context: typer.Context) -> None:
    """Show the state of the installation in one screen.

    Example: hybrid status
    """
    found = session_of(context).client.get("/status")
    if session_of(context).as_json:
        show(context, found, {})
        return
    pool = "available" if found["pool_available"] else f"NOT AVAILABLE: {found['pool_note']}"
    facts = {
        "hybrid": f"{found['version']} (Ray {found['ray_version']}), since {found['started_at']}",
        "policy": found["policy"] + _error(found["policy_error"]),
        "jobs": _counts(found["jobs"]) or "none waiting or running",
        "leases": _counts(found["leases"]) or "none",
        "pool": pool,
        "cards": f"{found['cards_free']} free of {found['cards_total']}, "
        f"{found['cards_unusable']} unusable",
        "rented": f"{found['rented_instances']} machines, {money(found['rented_per_hour'], 2)} "
        f"{found['currency']}/h, {money(found['spent_today'])} spent today",
        "last round": f"{found['last_tick_at']} in {found['tick_seconds'] or 0:.3f} s"
        + _error(found["tick_error"]),
    }  # fmt: skip
    for key, value in facts.items():
        print(f"{key:<11} {value}")


def _error(text: str | None) -> str:
    return f"  ERROR: {text}" if text else ""


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(found.items()))


def doctor(context: typer.Context, home: Home = None) -> None:
    """Look for what usually goes wrong; exit 1 if anything does.

    Example: hybrid doctor
    """
    from hybrid.cli.doctor import examine

    lines = examine(session_of(context).client, _settings(home, None, None))
    rows = [
        {
            "check": line.name,
            "state": "ok" if line.ok else "PROBLEM",
            "detail": line.detail,
            "hint": line.hint,
        }
        for line in lines
    ]
    columns = {"CHECK": "check", "STATE": "state", "DETAIL": "detail", "WHAT TO DO": "hint"}
    show(context, rows, columns)
    if not all(line.ok for line in lines):
        raise typer.Exit(FAILED)


def leaks(
    context: typer.Context,
    terminate: Annotated[bool, typer.Option("--terminate", help="End what is found.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    home: Home = None,
) -> None:
    """List rented machines that no live lease explains (found by tag; needs no controller).

    Example: hybrid leaks --terminate --yes
    """
    import sys

    from hybrid.cli.local import local_leaks

    found = local_leaks(_settings(home, None, None), terminate=False)
    if found and terminate:
        if not yes and not sys.stdin.isatty():
            raise CliError("refusing to end machines unasked", "add --yes", USAGE)
        if yes or typer.confirm(f"end {len(found)} machines?"):
            found = local_leaks(_settings(home, None, None), terminate=True)
    columns = {
        "PROVIDER": "provider", "MACHINE": "instance_id", "LEASE": "lease_id", "STATE": "state",
        "AGE S": "age_seconds", "WHAT": "detail", "ENDED": "terminated",
    }  # fmt: skip
    show(context, found, columns, "no leaks")
    if any(not leak["terminated"] for leak in found):
        raise typer.Exit(FAILED)


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave it running at the end.")] = False,
) -> None:
    """Show the whole path on this machine: fake cards, real Ray jobs, overflow, decisions, bill.

    Example: hybrid demo
    """
    from hybrid.cli.demo import run

    raise typer.Exit(run(keep))


def explain(
    code: Annotated[str, typer.Argument(help="An error code such as HB-214; empty: all.")] = "",
) -> None:
    """Explain an error code.

    Example: hybrid explain HB-214
    """
    from hybrid.cli.codes import CODES

    if code and code.upper() not in CODES:
        raise CliError(f"no error code {code}", f"known: {', '.join(CODES)}", USAGE)
    for name in [code.upper()] if code else CODES:
        print(f"{name}: {CODES[name]}")


def version() -> None:
    """Print the version.

    Example: hybrid version
    """
    print(__version__)


def _settings(home: Path | None, host: str | None, port: int | None) -> Settings:
    from hybrid.settings import Settings

    given: dict[str, Any] = {"home": home, "host": host, "port": port}
    return Settings(**{key: value for key, value in given.items() if value is not None})
