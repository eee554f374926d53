"""The entry point: global options, the commands, and errors as exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from hybrid.cli import admin, jobs, predict, resources, system, traces
from hybrid.cli.client import FAILED, CliError
from hybrid.cli.output import Session

app = typer.Typer(
    name="hybrid",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Own GPU cards first, rented ones when waiting costs more. Jobs come in with the "
    "unmodified `ray job submit`; this command shows, explains and administers.",
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 not authorised, 5 unreachable, "
    "6 refused, 7 wait timed out, 130 interrupted.",
)
for noun, commands in (
    ("job", jobs.app),
    ("pool", resources.pool),
    ("lease", resources.lease),
    ("offer", resources.offer),
    ("provider", resources.provider),
    ("policy", admin.policy),
    ("report", admin.report),
    ("token", admin.token),
    ("event", admin.event),
    ("trace", traces.trace),
    ("predict", predict.predict),
):
    app.add_typer(commands, name=noun)
system.register(app)


@app.callback()
def options(
    context: typer.Context,
    address: Annotated[
        str,
        typer.Option(envvar=["HYBRID_ADDRESS", "RAY_API_SERVER_ADDRESS"], help="The gateway."),
    ] = "http://127.0.0.1:8265",
    token: Annotated[
        str,
        typer.Option(
            envvar=["HYBRID_TOKEN", "RAY_AUTH_TOKEN"], help="Your token.", show_default=False
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    debug: Annotated[bool, typer.Option(help="Show tracebacks.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours.")] = False,
) -> None:
    """Options that every command has; they stand before its name."""
    if no_color:
        os.environ["NO_COLOR"] = "1"
    context.obj = Session(address, token, as_json, debug)


def main() -> None:
    """Run a command; known errors end without a traceback, with their exit code."""
    debug = "--debug" in sys.argv
    try:
        app()
    except CliError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint:  {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(FAILED)
    except Exception as error:
        if debug:
            raise
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        print("hint:  hybrid --debug … shows where", file=sys.stderr)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
