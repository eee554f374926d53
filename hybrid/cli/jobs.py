"""hybrid job: the queue and what became of each job."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from hybrid.cli.client import FAILED, TIMED_OUT, CliError, part
from hybrid.cli.output import ago, cell, duration, money, note, session_of, show

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, explain, follow and stop jobs."
)
JobId = Annotated[str, typer.Argument(help="The submission id (see `hybrid job ls`).")]
TERMINAL = ("succeeded", "failed", "stopped")


@app.command("ls")
def list_jobs(
    context: typer.Context,
    state: Annotated[
        list[str] | None, typer.Option(help="Only jobs in this state; may be repeated.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Only jobs of this user.")] = None,
    limit: Annotated[int, typer.Option(help="At most this many, newest first.")] = 200,
) -> None:
    """List jobs, newest first.

    Example: hybrid job ls --state queued --user ada
    """
    found = session_of(context).client.get("/jobs", state=state, user=user, limit=limit)
    rows = [{**job, "age": ago(job["submitted_at"])} for job in found]
    show(
        context,
        found,
        {
            "JOB": "id", "USER": "user", "STATE": "state", "GANG": "gang", "PLACE": "place",
            "AGE": "age", "MESSAGE": "message",
        },
        "no jobs",
        rows,
    )  # fmt: skip


@app.command("show")
def show_job(context: typer.Context, job_id: JobId) -> None:
    """Show one job with its attempts and what it cost so far.

    Example: hybrid job show raysubmit_x7Qk2
    """
    job = session_of(context).client.get(f"/jobs/{part(job_id)}")
    if session_of(context).as_json:
        show(context, job, {})
        return
    for key in (
        "id", "user", "project", "state", "message", "entrypoint", "gang", "priority",
        "submitted_at", "started_at", "ended_at", "lease_id", "place", "expected_start",
        "driver_exit_code", "error_type",
    ):  # fmt: skip
        print(f"{key:<17} {cell(job[key])}")
    for currency, amount in sorted(job["cost"].items()):
        print(f"{'cost':<17} {money(amount)} {currency}")
    for attempt in job["history"]:
        ended = f", ended {attempt['ended_at']}: {attempt['cause']}" if attempt["ended_at"] else ""
        print(f"attempt {attempt['number']:<9} {attempt['state']} on {attempt['lease_id']}{ended}")


@app.command("why")
def why(context: typer.Context, job_id: JobId) -> None:
    """Explain every decision on a job: choice, reason, what else was weighed, what came of it.

    Example: hybrid job why raysubmit_x7Qk2
    """
    found = session_of(context).client.get(f"/jobs/{part(job_id)}/decisions")
    if session_of(context).as_json:
        show(context, found, {})
        return
    if not found:
        note("no decision yet: the next planning round makes one")
    for decision in found:
        print(
            f"{decision['at'][:19]}Z  {decision['choice'].upper()}  (policy {decision['policy']})"
        )
        print(f"  {decision['reason']}")
        for option in decision["alternatives"]:
            print(f"    - {_option(option)}")
        if decision["outcome"]:
            print(f"  outcome: {_outcome(decision['outcome'])}")


def _option(option: Mapping[str, Any]) -> str:
    start = (option["expected_start"] or "")[:19]
    cost = option["expected_cost"]
    facts = [f"start {start}Z" if start else "start unknown"]
    if cost:
        facts.append(f"about {money(cost['amount'], 2)} {cost['currency']}")
    return f"{option['what']} ({', '.join(facts)}): {option['verdict']}"


def _outcome(outcome: Mapping[str, Any]) -> str:
    cost = ", ".join(f"{money(a)} {c}" for c, a in sorted(outcome.get("cost", {}).items()))
    ran = outcome.get("ran_seconds")
    return (
        f"{outcome['state']}, waited {duration(outcome['waited_seconds'])}"
        + (f", ran {duration(ran)}" if ran is not None else "")
        + (f", cost {cost}" if cost else "")
    )


@app.command("logs")
def logs(
    context: typer.Context,
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the job ends.")] = False,
) -> None:
    """Print a job's log (Hybrid's own lines start with [hybrid]).

    Example: hybrid job logs -f raysubmit_x7Qk2
    """
    client, shown = session_of(context).client, 0
    while True:
        over = client.get(f"/jobs/{part(job_id)}")["state"] in TERMINAL
        text = client.logs(job_id)
        print(text[shown:], end="", flush=True)
        shown = len(text)
        if over or not follow:
            return
        time.sleep(0.5)


@app.command("stop")
def stop(context: typer.Context, job_id: JobId) -> None:
    """Stop a job, wherever it is on its way.

    Example: hybrid job stop raysubmit_x7Qk2
    """
    job = session_of(context).client.post(f"/jobs/{part(job_id)}/stop")
    show(context, job, {"JOB": "id", "STATE": "state", "MESSAGE": "message"}, rows=[job])


@app.command("wait")
def wait(
    context: typer.Context,
    job_ids: Annotated[list[str], typer.Argument(help="One or more submission ids.")],
    timeout: Annotated[float, typer.Option(help="Give up after this many seconds.")] = 3600.0,
) -> None:
    """Wait until jobs have ended; exit 0 only if all succeeded.

    Example: hybrid job wait raysubmit_x7Qk2 --timeout 600
    """
    client, deadline = session_of(context).client, time.monotonic() + timeout
    jobs: dict[str, Any] = {}
    waiting = list(job_ids)
    while waiting:
        for job_id in list(waiting):
            jobs[job_id] = client.get(f"/jobs/{part(job_id)}")
            if jobs[job_id]["state"] in TERMINAL:
                waiting.remove(job_id)
        if waiting and time.monotonic() > deadline:
            names = ", ".join(waiting)
            raise CliError(f"still not ended after {timeout:g} s: {names}", "", TIMED_OUT)
        time.sleep(0.5 if waiting else 0)
    found = [jobs[job_id] for job_id in job_ids]
    show(context, found, {"JOB": "id", "STATE": "state", "MESSAGE": "message"})
    if any(job["state"] != "succeeded" for job in found):
        raise typer.Exit(FAILED)
