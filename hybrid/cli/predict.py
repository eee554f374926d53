"""hybrid predict: how well runtimes can be told from history."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from hybrid.cli.client import USAGE, CliError
from hybrid.cli.output import group, session_of, show
from hybrid.cli.traces import FormatOption, QuietOption, TraceFile, ZoneOption, load

predict = group("How long jobs will run, learned from history.")


class When(StrEnum):
    """The moment of the prediction."""

    SUBMIT = "submit"
    DISPATCH = "dispatch"


@predict.command("backtest")
def predict_backtest(
    context: typer.Context,
    source: TraceFile,
    at: Annotated[
        When, typer.Option(help="When the job is submitted, or again when it starts.")
    ] = When.SUBMIT,
    format: FormatOption = "auto",
    timezone: ZoneOption = "UTC",
    quiet: QuietOption = False,
) -> None:
    """Replay a history: each job is predicted from what had happened before, the first 30 % are
    learned from only. Baselines stand beside it. Only jobs with cards count.

    Example: hybrid predict backtest jobs.txt --at dispatch
    """
    from hybrid.learn.backtest import backtest

    jobs = [job for job in load(source, format, timezone, quiet)[0] if job.gpus > 0]
    if len(jobs) < 10:
        raise CliError(
            f"{source} has {len(jobs)} jobs with cards; a backtest needs 10", exit_code=USAGE
        )
    scores = backtest(jobs, at.value)
    if session_of(context).as_json:
        show(context, {"at": at.value, "scores": [asdict(score) for score in scores]}, {})
        return
    rows = [
        {
            "name": score.name,
            "jobs": f"{score.jobs:,}",
            "within": f"{score.within_two:.1%}",
            "median": f"{score.median_ratio:.2f}",
            "p90": f"{score.p90_ratio:.1f}",
            "covered": "-" if score.covered is None else f"{score.covered:.1%}",
        }
        for score in scores
    ]
    columns = {
        "PREDICTOR": "name",
        "JOBS": "jobs",
        "WITHIN 2X": "within",
        "MEDIAN RATIO": "median",
        "P90 RATIO": "p90",
        "IN 80% INTERVAL": "covered",
    }
    show(context, rows, columns)
