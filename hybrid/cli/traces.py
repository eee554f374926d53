"""hybrid trace: histories of jobs, from other systems or made up."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from hybrid.cli.client import USAGE, CliError
from hybrid.cli.output import duration, group, note, session_of, show

if TYPE_CHECKING:
    from hybrid.traces.describe import Description
    from hybrid.traces.record import ReadReport, TraceJob

T = TypeVar("T")

trace = group("Histories of jobs: Slurm, SWF, public GPU traces, synthetic ones.")

TraceFile = Annotated[
    Path,
    typer.Argument(help="sacct, RayJobs, SWF, CSV or Parquet; may be gzipped.", show_default=False),
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format", help="auto, sacct, rayjob, hybrid, swf, drac, philly, openb, starburst."
    ),
]
ZoneOption = Annotated[
    str, typer.Option("--timezone", help="Zone of moments that name none, e.g. Europe/Berlin.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


def zone_of(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise CliError(f"no time zone {name!r}", "for example Europe/Berlin", USAGE) from None


def progress(things: Iterable[T], what: str, quiet: bool) -> Iterator[T]:
    """Pass `things` through a progress bar on a terminal's stderr."""
    if quiet or not sys.stderr.isatty():
        yield from things
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(things, what, console=Console(stderr=True), transient=True)


def load(
    path: Path, format: str = "auto", timezone: str = "UTC", quiet: bool = True
) -> tuple[list[TraceJob], ReadReport]:
    """All jobs of a history by time of submission; the command ends where there is none."""
    from hybrid.traces.read import open_trace
    from hybrid.traces.record import TraceError

    try:
        opened = open_trace(path, format, zone_of(timezone))
        jobs = sorted(progress(opened.jobs, f"reading {path.name}", quiet), key=lambda j: j.submit)
    except TraceError as error:
        raise CliError(str(error)) from None
    report = opened.report
    for line in said(report):
        note(line)
    if not jobs:
        raise CliError(f"{path} holds no job that ran", "`hybrid trace import --help`")
    return jobs, report


def said(report: ReadReport) -> Iterator[str]:
    yield f"{report.source}: {report.format}, {report.kept:,} of {report.rows:,} rows kept"
    for reason, count in report.dropped.most_common():
        yield f"  dropped {count:,}: {reason}"
    for text in report.notes:
        yield f"  note: {text}"


@trace.command("import")
def trace_import(
    context: typer.Context,
    source: TraceFile,
    out: Annotated[Path, typer.Argument(help="Ends in .csv, .csv.gz or .parquet.")],
    format: FormatOption = "auto",
    timezone: ZoneOption = "UTC",
    quiet: QuietOption = False,
) -> None:
    """Write a history in Hybrid's own schema, and say which rows were dropped and why.

    Slurm writes one with: sacct --allusers --parsable2 --duplicates --starttime 2026-01-01
    --format JobIDRaw,JobID,User,Account,Partition,JobName,Submit,Start,End,ElapsedRaw,State,
    AllocTRES,ReqTRES,NNodes,NCPUS,ReqMem,TimelimitRaw

    Example: hybrid trace import jobs.txt jobs.parquet
    """
    from hybrid.traces.read import open_trace
    from hybrid.traces.record import TraceError
    from hybrid.traces.write import write_trace

    try:
        opened = open_trace(source, format, zone_of(timezone))
        written = write_trace(out, progress(opened.jobs, f"reading {source.name}", quiet))
    except TraceError as error:
        raise CliError(str(error)) from None
    report = opened.report
    if session_of(context).as_json:
        show(context, {**_report_json(report), "out": str(out), "written": written}, {})
        return
    for line in said(report):
        note(line)
    print(f"{out}: {written:,} jobs")


@trace.command("export")
def trace_export(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="Ends in .csv, .csv.gz or .parquet.")],
    home: Annotated[
        Path | None, typer.Option(envvar="HYBRID_HOME", help="State folder.", show_default=False)
    ] = None,
) -> None:
    """Write what ran in this installation as a history, one row per attempt that ended. Reads the
    database itself; Hybrid may be running or not.

    Example: hybrid trace export ours.parquet
    """
    from hybrid.cli.local import export_history
    from hybrid.settings import Settings
    from hybrid.traces.record import TraceError

    settings = Settings() if home is None else Settings(home=home)
    try:
        written = export_history(settings, out)
    except TraceError as error:
        raise CliError(str(error)) from None
    if session_of(context).as_json:
        show(context, {"out": str(out), "written": written}, {})
        return
    print(f"{out}: {written:,} jobs")


@trace.command("describe")
def trace_describe(
    context: typer.Context,
    source: TraceFile,
    format: FormatOption = "auto",
    timezone: ZoneOption = "UTC",
    quiet: QuietOption = False,
) -> None:
    """Sizes, runtimes, waits, users, and the demand for cards over time.

    Example: hybrid trace describe jobs.txt
    """
    from hybrid.traces.describe import describe

    jobs, report = load(source, format, timezone, quiet)
    told = describe(jobs)
    if session_of(context).as_json:
        show(context, {**_report_json(report), **asdict(told)}, {})
        return
    for line in _described(told):
        print(line)


@trace.command("generate")
def trace_generate(
    out: Annotated[Path, typer.Argument(help="Ends in .csv, .csv.gz or .parquet.")],
    jobs: Annotated[int, typer.Option(min=1, help="Number of jobs.")] = 10_000,
    cards: Annotated[int, typer.Option(min=1, help="Cards that the load is meant for.")] = 64,
    load: Annotated[float, typer.Option(min=0.01, help="Demand as a share of the cards.")] = 1.0,
    arrival_cv: Annotated[
        float, typer.Option(min=0.1, help="Variation of gaps between arrivals; 1 is Poisson.")
    ] = 2.0,
    mean_runtime: Annotated[
        float, typer.Option("--mean-runtime-seconds", min=1, help="Mean runtime.")
    ] = 3600.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same jobs.")] = 0,
) -> None:
    """Make up a history: Gamma arrivals, users with habits, a share of early failures.

    Example: hybrid trace generate busy.csv --load 1.2 --seed 7
    """
    from hybrid.traces.generate import Workload, generate
    from hybrid.traces.record import TraceError
    from hybrid.traces.write import write_trace

    workload = Workload(
        jobs=jobs, cards=cards, load=load, arrival_cv=arrival_cv, mean_runtime_seconds=mean_runtime
    )
    try:
        print(f"{out}: {write_trace(out, generate(workload, seed)):,} jobs")
    except TraceError as error:
        raise CliError(str(error)) from None


def _report_json(report: ReadReport) -> dict[str, Any]:
    return {
        "source": report.source,
        "format": report.format,
        "kept": report.kept,
        "dropped": dict(report.dropped),
        "notes": report.notes,
    }


def _described(told: Description) -> Iterator[str]:
    first = datetime.fromtimestamp(told.first_submit, UTC)
    yield (
        f"{told.jobs:,} jobs, {told.gpu_jobs:,} with cards, {told.users:,} users, from "
        f"{first:%Y-%m-%d %H:%M} UTC over {told.span_hours / 24:.1f} days"
    )
    yield (
        f"{told.gpu_hours:,.0f} GPU-hours: {told.mean_gpus:,.1f} cards busy on average if nobody "
        f"waited, {told.peak_gpus:,.0f} at the peak"
    )
    yield "runtime  " + _quantiles(told.runtime_quantiles)
    if told.wait_quantiles:
        yield "wait     " + _quantiles(told.wait_quantiles)
    if told.ended:
        yield "ended    " + ", ".join(f"{name} {count:,}" for name, count in told.ended)
    if told.demand:
        yield "demand   " + _bars(told.demand, told.peak_gpus)
    yield ""
    yield "CARDS     JOBS  GPU-HOURS"
    for size in told.sizes:
        share = size.gpu_hours / told.gpu_hours if told.gpu_hours else 0.0
        yield f"{size.gpus:5d} {size.jobs:8,} {size.gpu_hours:10,.0f}  {'█' * round(30 * share)}"
    if told.users > 1:
        yield ""
        yield "USER              GPU-HOURS"
        for user, hours in told.top_users:
            yield f"{(user or '(unknown)')[:16]:16s} {hours:10,.0f}"


def _quantiles(pairs: Iterable[tuple[float, float]]) -> str:
    return "  ".join(f"p{share * 100:.0f} {duration(value)}" for share, value in pairs)


def _bars(values: Iterable[float], peak: float) -> str:
    steps = " ▁▂▃▄▅▆▇█"
    return "".join(steps[round(8 * value / peak)] if peak else steps[0] for value in values)
