"""hybrid pool, lease, offer, provider: what there is to run on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from hybrid.cli.client import FAILED, part
from hybrid.cli.output import ago, gib, group, money, note, session_of, show

pool = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The on-prem nodes and their cards."
)
lease = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="What is held now, on-prem and rented."
)
offer = group("What could be rented now.")
provider = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The clouds that are installed."
)
NodeId = Annotated[str, typer.Argument(help="The node's id (see `hybrid pool ls`).")]
Reason = Annotated[str, typer.Option(help="Shown wherever the node is.")]


@pool.command("ls")
def pool_ls(context: typer.Context) -> None:
    """List nodes and cards: free, held by which lease, or unusable and why.

    Example: hybrid pool ls
    """
    _show_pool(context, session_of(context).client.get("/pool"))


def _show_pool(context: typer.Context, found: Mapping[str, Any]) -> None:
    if not found["available"]:
        note(f"the pool cannot be asked now: {found['note']}")
    rows = []
    for node in found["nodes"]:
        for card in node["cards"] or [None]:
            state = node["cordoned"] and f"cordoned: {node['cordoned']}"
            if card is not None:
                held = f"held by {card['held_by']}" if card["held_by"] else "free"
                state = card["unusable"] or (held if held != "free" else state) or held
            rows.append(
                {
                    "node": node["id"],
                    "cpus": f"{node['free_cpus']:g}/{node['cpus']:g}",
                    "index": card and card["index"],
                    "model": card and card["model"],
                    "memory": card and gib(card["memory_bytes"]),
                    "uuid": card and card["uuid"],
                    "state": state or "no cards",
                }
            )
    columns = {
        "NODE": "node", "CPUS FREE": "cpus", "CARD": "index", "MODEL": "model", "GIB": "memory",
        "UUID": "uuid", "STATE": "state",
    }  # fmt: skip
    show(context, found, columns, "no nodes in the pool", rows)


@pool.command("cordon")
def cordon(context: typer.Context, node: NodeId, reason: Reason = "") -> None:
    """Give a node no new leases; what runs there goes on.

    Example: hybrid pool cordon gpu07 --reason "fan noise"
    """
    found = session_of(context).client.post(f"/pool/{part(node)}/cordon", {"reason": reason})
    _show_pool(context, found)


@pool.command("drain")
def drain(context: typer.Context, node: NodeId, reason: Reason = "") -> None:
    """Cordon a node and let its warm leases go; jobs run to their end.

    Example: hybrid pool drain gpu07 --reason "kernel update"
    """
    found = session_of(context).client.post(f"/pool/{part(node)}/drain", {"reason": reason})
    _show_pool(context, found)


@pool.command("uncordon")
def uncordon(context: typer.Context, node: NodeId) -> None:
    """Take a node back into service.

    Example: hybrid pool uncordon gpu07
    """
    _show_pool(context, session_of(context).client.post(f"/pool/{part(node)}/uncordon"))


@pool.command("quarantine")
def quarantine(
    context: typer.Context,
    card: Annotated[str, typer.Argument(help="The card's UUID.")],
    reason: Reason = "",
) -> None:
    """Keep one card out of use; a lease that has it goes on.

    Example: hybrid pool quarantine GPU-5f0c --reason "ECC errors"
    """
    path = f"/pool/cards/{part(card)}/quarantine"
    _show_pool(context, session_of(context).client.post(path, {"reason": reason}))


@pool.command("heal")
def heal(
    context: typer.Context, card: Annotated[str, typer.Argument(help="The card's UUID.")]
) -> None:
    """Lift the quarantine of a card.

    Example: hybrid pool heal GPU-5f0c
    """
    _show_pool(context, session_of(context).client.post(f"/pool/cards/{part(card)}/heal"))


LEASE_COLUMNS = {
    "LEASE": "id", "KIND": "kind", "STATE": "state", "OWNER": "owner", "GANG": "gang",
    "WHERE": "where", "JOB": "job_id", "RATE/H": "rate", "AGE": "age", "NOTE": "note",
}  # fmt: skip


def _lease_row(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **found,
        "rate": f"{found['units']} x {money(found['rate_per_hour'])} {found['currency']}",
        "age": ago(found["requested_at"]),
        "note": found["remains"] or found["failure"] or found["message"] or None,
    }


@lease.command("ls")
def lease_ls(
    context: typer.Context,
    all_leases: Annotated[bool, typer.Option("--all", help="Released ones too.")] = False,
) -> None:
    """List leases with what they cost per hour.

    Example: hybrid lease ls --all
    """
    found = session_of(context).client.get("/leases", all=str(all_leases).lower())
    show(context, found, LEASE_COLUMNS, "no open leases", [_lease_row(le) for le in found])


@lease.command("release")
def lease_release(
    context: typer.Context, lease_id: Annotated[str, typer.Argument(help="The lease's id.")]
) -> None:
    """Let a warm lease go now.

    Example: hybrid lease release lease-01hx
    """
    found = session_of(context).client.post(f"/leases/{part(lease_id)}/release")
    show(context, found, LEASE_COLUMNS, rows=[_lease_row(found)])


@offer.command("ls")
def offer_ls(context: typer.Context) -> None:
    """List what the installed providers offer, with prices and why one is not tried.

    Example: hybrid offer ls
    """
    found = session_of(context).client.get("/offers")
    rows = [
        {
            **row,
            "price": row["price_per_hour"] and f"{row['price_per_hour']} {row['currency']}",
            "memory": gib(row["gpu_memory_bytes"]),
        }
        for row in found
    ]
    columns = {
        "PROVIDER": "provider", "ZONE": "zone", "TYPE": "instance_type", "MARKET": "market",
        "GPUS": "gpus", "MODEL": "gpu_model", "GIB": "memory", "PRICE/H": "price",
        "READY S": "ready_seconds", "NOT TRIED BECAUSE": "unavailable",
    }  # fmt: skip
    show(context, found, columns, "no offers: no provider is installed", rows)


@provider.command("ls")
def provider_ls(context: typer.Context) -> None:
    """List the installed provider plugins and whether they work.

    Example: hybrid provider ls
    """
    found = session_of(context).client.get("/providers")
    columns = {"PROVIDER": "name", "PACKAGE": "package", "WORKS": "loaded", "OFFERS": "offers",
               "ERROR": "error"}  # fmt: skip
    show(context, found, columns, "no providers installed")


@provider.command("check")
def provider_check(
    context: typer.Context, name: Annotated[str, typer.Argument(help="The provider's name.")]
) -> None:
    """Check credentials, limits and prices of a provider; exit 1 if anything is wrong.

    Example: hybrid provider check local
    """
    found = session_of(context).client.post(f"/providers/{part(name)}/check")
    rows = [{**line, "state": "ok" if line["ok"] else "PROBLEM"} for line in found]
    columns = {"CHECK": "name", "STATE": "state", "DETAIL": "detail", "WHAT TO DO": "hint"}
    show(context, found, columns, rows=rows)
    if not all(line["ok"] for line in found):
        raise typer.Exit(FAILED)
