"""How results are shown: a table on a terminal, tabs in a pipe, JSON on request."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import typer

from hybrid.cli.client import Client


@dataclass(slots=True)
class Session:
    """What the global options say."""

    address: str
    token: str
    as_json: bool
    debug: bool

    @property
    def client(self) -> Client:
        return Client(self.address, self.token)


def session_of(context: typer.Context) -> Session:
    found = context.find_root().obj
    assert isinstance(found, Session)
    return found


Row = Mapping[str, Any]


def group(text: str) -> typer.Typer:
    """A noun with its commands. Help is plain: Rich would double the time to print it."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=text)


def show(
    context: typer.Context,
    data: Any,
    columns: Mapping[str, str],
    empty: str = "none",
    rows: Sequence[Row] | None = None,
) -> None:
    """Print `data` as JSON, or `rows` (default: `data`) with `columns`: title → key."""
    if session_of(context).as_json:
        print(json.dumps(data, indent=2))
        return
    table = list(rows if rows is not None else data)
    if not table:
        note(empty)
        return
    cells = [[cell(row.get(key)) for key in columns.values()] for row in table]
    if not sys.stdout.isatty():
        print("\t".join(columns))
        for line in cells:
            print("\t".join(line))
        return
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for title in columns:
        drawn.add_column(title, overflow="fold")
    for line in cells:
        drawn.add_row(*line)
    Console(no_color="NO_COLOR" in os.environ).print(drawn)


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).replace("\t", " ").replace("\n", " ")


def note(text: str) -> None:
    """Narration: never mixed with results."""
    print(text, file=sys.stderr)


def ago(moment: str | None) -> str:
    """How long ago, for people: 42s, 13m, 5h, 3d."""
    if moment is None:
        return "-"
    then = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return duration((datetime.now(UTC) - then).total_seconds())


def duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


def money(amount: str | Decimal, digits: int = 4) -> str:
    quantum = Decimal(1).scaleb(-digits)
    return str(Decimal(amount).quantize(quantum, rounding=ROUND_HALF_EVEN))


def gib(size: int) -> str:
    return f"{size / 1024**3:.0f}"
