"""What usually goes wrong, looked for one by one."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import metadata

from hybrid.cli.client import UNREACHABLE, Client, CliError
from hybrid.plugins import PROVIDERS, PluginError, discover
from hybrid.ports import CheckLine
from hybrid.settings import Settings

TESTED_RAY = "2.60.0"
LEAST_FREE_BYTES = 5 * 1024**3


def examine(client: Client, settings: Settings) -> list[CheckLine]:
    """All checks; each says what to do."""
    return [
        _ray(),
        _name_clash(),
        _ray_address(client),
        _namespaces(),
        _disk(settings),
        *_providers(),
        _gateway(client),
    ]


def _ray() -> CheckLine:
    found = metadata.version("ray")
    same = found == TESTED_RAY
    hint = "" if same else f"pip install 'ray[default]=={TESTED_RAY}' if anything behaves oddly"
    return CheckLine(
        "ray", True, f"{found} ({'tested' if same else f'tested: {TESTED_RAY}'})", hint
    )


def _name_clash() -> CheckLine:
    """dwave-hybrid installs a package of the same name."""
    packages = metadata.packages_distributions().get("hybrid", [])
    others = sorted(set(packages) - {"hybrid-burst"})
    hint = f"pip uninstall {' '.join(others)}, or use a venv of its own" if others else ""
    return CheckLine("package name", not others, f"`hybrid` comes from {packages}", hint)


def _ray_address(client: Client) -> CheckLine:
    """Ray's own look-up order: the environment wins over --address."""
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        value = os.environ.get(name)
        if not value:
            continue
        if not value.startswith(("http://", "https://")):
            return CheckLine(
                name, False, f"{value!r} is taken as a GCS address and bypasses the gateway",
                f"export {name}={client.address}",
            )  # fmt: skip
        same = value.rstrip("/") == client.address
        hint = "" if same else f"export {name}={client.address}"
        return CheckLine(name, same, f"`ray job submit` goes to {value}", hint)
    return CheckLine(
        "RAY_API_SERVER_ADDRESS",
        False,
        "not set: on a node of a Ray cluster `ray job submit` finds that and bypasses the gateway",
        f"export RAY_API_SERVER_ADDRESS={client.address}",
    )


def _namespaces() -> CheckLine:
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "true"]
    user = ["unshare", "--user", "--map-current-user", *command[1:]]
    for prefix in (command, user):
        if shutil.which("unshare") and subprocess.run(prefix, capture_output=True).returncode == 0:
            return CheckLine("process isolation", True, "PID namespaces are permitted")
    return CheckLine(
        "process isolation",
        True,
        "no PID namespaces here: a job's processes are found and ended by their ancestry instead",
        "allow unprivileged user namespaces for the stronger isolation",
    )


def _disk(settings: Settings) -> CheckLine:
    home = settings.state_dir
    place = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(place).free
    enough = free >= LEAST_FREE_BYTES
    hint = "" if enough else "free some, or set HYBRID_HOME to a larger disk"
    return CheckLine("disk", enough, f"{free / 1024**3:.0f} GiB free below {place}", hint)


def _providers() -> list[CheckLine]:
    lines = []
    for name, plugin in sorted(discover(PROVIDERS).items()):
        try:
            plugin.load()
            lines.append(CheckLine(f"provider {name}", True, f"from {plugin.package}"))
        except PluginError as error:
            hint = f"pip install --force-reinstall {plugin.package}"
            lines.append(CheckLine(f"provider {name}", False, str(error), hint))
    return lines


def _gateway(client: Client) -> CheckLine:
    try:
        found = client.get("/status")
    except CliError as error:
        name = "gateway" if error.exit_code == UNREACHABLE else "token"
        return CheckLine(name, False, str(error), error.hint)
    problem = found["tick_error"] or found["policy_error"]
    if not found["pool_available"]:
        problem = problem or f"the pool cannot be asked: {found['pool_note']}"
    return CheckLine(
        "gateway",
        not problem,
        problem or f"{client.address} answers (version {found['version']})",
        "hybrid status; the log is serve.log in the state folder" if problem else "",
    )
