"""hybrid policy, report, token, event: what admins and finance use."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hybrid.cli.client import USAGE, CliError, part
from hybrid.cli.output import cell, group, money, note, session_of, show

policy = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The rules in force, and others to try."
)
report = group("What it cost.")
token = group("Who may use the gateway.")
event = group("What happened.")


@policy.command("ls")
def policy_ls(context: typer.Context) -> None:
    """List the policies that can be used.

    Example: hybrid policy ls
    """
    found = session_of(context).client.get("/policies")
    columns = {"POLICY": "name", "IN FORCE": "in_force", "FILE": "source", "ERROR": "error"}
    show(context, found, columns)


@policy.command("show")
def policy_show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A policy; default: the one in force.")] = "current",
) -> None:
    """Print a policy's text.

    Example: hybrid policy show default
    """
    found = session_of(context).client.get(f"/policies/{part(name)}")
    if session_of(context).as_json:
        show(context, found, {})
        return
    note(f"# {found['name']} from {found['source']}, sha256 {found['sha256'][:12]}")
    print(found["text"], end="")


@policy.command("validate")
def policy_validate(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A TOML file.", exists=True, dir_okay=False)],
) -> None:
    """Check a policy file: names file, line, key, value and rule of the first error.

    Example: hybrid policy validate ./mine.toml
    """
    from hybrid.plugins import STRATEGIES, discover
    from hybrid.policy.files import parse
    from hybrid.policy.schema import PolicyError

    strategies = {name: plugin.load for name, plugin in discover(STRATEGIES).items()}
    try:
        loaded = parse(file.stem, file.read_text(), str(file), strategies)
    except PolicyError as error:
        raise CliError(str(error), "", USAGE) from error
    found = {"name": loaded.name, "sha256": loaded.sha256, "valid": True}
    show(context, found, {"POLICY": "name", "VALID": "valid", "SHA256": "sha256"}, rows=[found])


@policy.command("use")
def policy_use(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A known policy, or a TOML file.")],
) -> None:
    """Put a policy in force (admins). A wrong one is refused and changes nothing.

    Example: hybrid policy use never
    """
    path = Path(name)
    body: dict[str, Any] = {"name": name}
    if name.endswith(".toml"):
        if not path.is_file():
            raise CliError(f"no file {name}", "hybrid policy ls shows the known ones", USAGE)
        body = {"name": path.stem, "text": path.read_text()}
    found = session_of(context).client.put("/policy", body)
    show(
        context, found, {"POLICY": "name", "IN FORCE": "in_force", "SHA256": "sha256"}, rows=[found]
    )


@policy.command("explain")
def policy_explain(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="A key or the start of one; default: all.")] = "",
) -> None:
    """Say what every key of a policy means, its unit and its default.

    Example: hybrid policy explain caps
    """
    from hybrid.policy.schema import knobs

    found = [knob for knob in knobs() if knob.key.startswith(key)]
    if not found:
        raise CliError(f"no policy key starts with {key!r}", "hybrid policy explain", USAGE)
    rows = [
        {
            "key": knob.key,
            "kind": knob.kind,
            "default": _default(knob.default),
            "unit": knob.unit,
            "doc": knob.doc,
        }
        for knob in found
    ]
    show(
        context,
        rows,
        {"KEY": "key", "KIND": "kind", "DEFAULT": "default", "UNIT": "unit", "MEANING": "doc"},
    )


def _default(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items()) or "none"
    return str(value)


@report.command("cost")
def cost(
    context: typer.Context,
    month: Annotated[str | None, typer.Option(help="YYYY-MM; default: this month, UTC.")] = None,
    by: Annotated[str, typer.Option(help="project, user, job, pool or lease.")] = "project",
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated, exact amounts.")] = False,
) -> None:
    """Sum the ledger. Kinds sum to each total, totals to the whole, to the last digit.

    Example: hybrid report cost --month 2026-12 --by user --csv
    """
    found = session_of(context).client.get("/report/cost", month=month, by=by)
    kinds = sorted({kind for row in found["rows"] for kind in row["amounts"]})
    if as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow([by, "currency", *kinds, "total", "unit_hours"])
        for row in found["rows"]:
            amounts = [row["amounts"].get(kind, "0") for kind in kinds]
            key = _no_formula(row["key"])
            writer.writerow([key, row["currency"], *amounts, row["total"], row["unit_hours"]])
        return
    rows = [
        {
            "key": row["key"],
            "currency": row["currency"],
            **{f"kind {kind}": money(row["amounts"].get(kind, "0")) for kind in kinds},
            "total": money(row["total"]),
            "unit_hours": row["unit_hours"],
        }
        for row in found["rows"]
    ]
    columns = {
        by.upper(): "key",
        "CURRENCY": "currency",
        **{f"{kind.upper()} COST": f"kind {kind}" for kind in kinds},
        "TOTAL": "total",
        "UNIT-HOURS": "unit_hours",
    }
    show(context, found, columns, "nothing was charged in that month", rows)
    if not session_of(context).as_json:
        for currency, total in sorted(found["totals"].items()):
            still = money(found["accruing"].get(currency, "0"))
            note(f"total {money(total)} {currency} ({still} of it still accruing)")


def _no_formula(text: str) -> str:
    """A cell that a spreadsheet would take for a formula is quoted."""
    return f"'{text}" if text[:1] in "=+-@\t\r" else text


@token.command("create")
def token_create(
    context: typer.Context,
    user: Annotated[str, typer.Argument(help="Who the token speaks for.")],
    role: Annotated[str, typer.Option(help="user, operator or admin.")] = "user",
    note_text: Annotated[str, typer.Option("--note", help="What it is for.")] = "",
) -> None:
    """Make a token. Its secret is printed once and kept nowhere.

    Example: hybrid token create ada --role user
    """
    body = {"user": user, "role": role, "note": note_text}
    found = session_of(context).client.post("/tokens", body)
    if session_of(context).as_json:
        show(context, found, {})
        return
    print(found["secret"])
    note(f"{found['id']} for {user} ({role}). To use it:")
    note("  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=<the secret>")


@token.command("revoke")
def token_revoke(
    context: typer.Context, token_id: Annotated[str, typer.Argument(help="See `token ls`.")]
) -> None:
    """Make a token useless, at once.

    Example: hybrid token revoke token-01hx
    """
    found = session_of(context).client.delete(f"/tokens/{part(token_id)}")
    show(context, found, {"REVOKED": "revoked"}, rows=[found])


@token.command("ls")
def token_ls(context: typer.Context) -> None:
    """List tokens (never their secrets).

    Example: hybrid token ls
    """
    found = session_of(context).client.get("/tokens")
    columns = {
        "TOKEN": "id", "USER": "user", "ROLE": "role", "NOTE": "note",
        "CREATED": "created_at", "EXPIRES": "expires_at", "REVOKED": "revoked_at",
    }  # fmt: skip
    show(context, found, columns, "no tokens: hybrid token create USER")


@event.command("ls")
def event_ls(
    context: typer.Context,
    after: Annotated[int, typer.Option(help="Only events with a larger number.")] = 0,
    job: Annotated[str | None, typer.Option(help="Only those of this job.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come.")] = False,
) -> None:
    """List state changes with their causes.

    Example: hybrid event ls --job raysubmit_x7Qk2
    """
    client = session_of(context).client
    if follow:
        for row in client.events(after):
            line = (row["id"], row["at"], row["entity"], row["entity_id"], row["to_state"])
            print("\t".join([*map(cell, line), cell(row["cause"])]), flush=True)
        return
    found = client.get("/events", after=after, job=job)
    columns = {"NO": "id", "AT": "at", "WHAT": "entity", "ID": "entity_id", "FROM": "from_state",
               "TO": "to_state", "CAUSE": "cause"}  # fmt: skip
    show(context, found, columns, "no events")
