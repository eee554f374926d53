"""Readers of histories: every format, and every way a file can be bad."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.traces.describe import SLICES, describe
from hybrid.traces.generate import Workload, generate
from hybrid.traces.read import open_trace, read_trace
from hybrid.traces.record import Ended, TraceError, TraceJob
from hybrid.traces.write import write_trace
from tests.data import DRAC, OPENB, PHILLY, real

SACCT = "JobIDRaw|User|Account|Partition|JobName|Submit|Start|End|ElapsedRaw|State|AllocTRES|"
SACCT += "ReqTRES|NNodes|NCPUS|ReqMem|TimelimitRaw\n"


def sacct_row(**changes: str) -> str:
    cells = {
        "JobIDRaw": "12",
        "User": "ada",
        "Account": "vision",
        "Partition": "gpu",
        "JobName": "train.py",
        "Submit": "2026-03-01T10:00:00",
        "Start": "2026-03-01T10:05:00",
        "End": "2026-03-01T11:05:00",
        "ElapsedRaw": "3600",
        "State": "COMPLETED",
        "AllocTRES": "billing=8,cpu=8,gres/gpu=2,gres/gpu:a100=2,mem=64G,node=1",
        "ReqTRES": "",
        "NNodes": "1",
        "NCPUS": "8",
        "ReqMem": "64G",
        "TimelimitRaw": "120",
    }
    return "|".join({**cells, **changes}.values()) + "\n"


def write(path: Path, *parts: str) -> Path:
    path.write_text("".join(parts))
    return path


def test_sacct_row_becomes_a_job(tmp_path: Path) -> None:
    jobs, report = read_trace(write(tmp_path / "jobs.txt", SACCT, sacct_row()))
    assert report.format == "sacct"
    assert jobs == [
        TraceJob(
            id="12",
            submit=1772359200.0,
            runtime_seconds=3600.0,
            gpus=2,
            user="ada",
            project="vision",
            partition="gpu",
            name="train.py",
            start=1772359500.0,
            end=1772363100.0,
            nodes=1,
            cpus=8.0,
            memory_bytes=64 << 30,
            gpu_model="a100",
            limit_seconds=7200.0,
            ended=Ended.COMPLETED,
        )
    ]
    assert report.notes == ["moments name no zone; read as UTC (--timezone)"]


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        ("COMPLETED", Ended.COMPLETED),
        ("FAILED", Ended.FAILED),
        ("OUT_OF_MEMORY", Ended.FAILED),
        ("CANCELLED by 1000", Ended.CANCELLED),
        ("CANCELLED+", Ended.CANCELLED),
        ("TIMEOUT", Ended.TIMEOUT),
        ("DEADLINE", Ended.TIMEOUT),
        ("NODE_FAIL", Ended.LOST),
        ("BOOT_FAIL", Ended.LOST),
        ("PREEMPTED", Ended.LOST),
        ("REQUEUED", Ended.LOST),
        ("RUNNING", Ended.UNKNOWN),
    ],
)
def test_every_slurm_state(tmp_path: Path, state: str, ended: Ended) -> None:
    jobs, _ = read_trace(write(tmp_path / "j", SACCT, sacct_row(State=state)))
    assert jobs[0].ended is ended


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"State": "PENDING"}, "the job never ran"),
        ({"State": "FROBNICATED"}, "State FROBNICATED is not one of Slurm's"),
        ({"Start": "Unknown"}, "the job never ran"),
        ({"ElapsedRaw": "0"}, "runtime is not above zero"),
        ({"ElapsedRaw": "-5"}, "runtime is not above zero"),
        ({"End": "2026-03-01T09:00:00"}, "end before start"),
        ({"JobIDRaw": "12.batch"}, "a step, its job has a row of its own"),
        ({"Submit": "yesterday"}, "a moment is neither ISO-8601 nor seconds"),
        ({"JobName": "a|b"}, "the row has another number of cells than the header"),
    ],
)
def test_a_bad_row_is_dropped_and_counted(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    good = sacct_row(JobIDRaw="99")
    jobs, report = read_trace(write(tmp_path / "j", SACCT, sacct_row(**changes), good))
    assert [job.id for job in jobs] == ["99"]
    assert report.dropped == {reason: 1}
    assert report.rows == 2


def test_a_requeued_job_has_a_run_per_row(tmp_path: Path) -> None:
    first = sacct_row(State="NODE_FAIL")
    second = sacct_row(Start="2026-03-01T12:00:00", End="2026-03-01T13:00:00")
    jobs, report = read_trace(write(tmp_path / "j", SACCT, first, second, second))
    assert [job.id for job in jobs] == ["12", "12#2"]
    assert report.dropped == {"the same run twice": 1}


def test_moments_are_read_in_the_zone_given(tmp_path: Path) -> None:
    path = write(tmp_path / "j", SACCT, sacct_row())
    here, _ = read_trace(path, zone=ZoneInfo("Europe/Berlin"))
    assert here[0].submit == 1772359200.0 - 3600


def test_mixed_zones_cannot_be_compared(tmp_path: Path) -> None:
    path = write(tmp_path / "j", SACCT, sacct_row(Start="2026-03-01T10:05:00+00:00"))
    with pytest.raises(TraceError, match="SLURM_TIME_FORMAT"):
        read_trace(path)


@pytest.mark.parametrize(
    ("tres", "gpus", "model"),
    [
        ("cpu=4,gres/gpu=4", 4, None),
        ("cpu=4,gres/gpu:h100=3", 3, "h100"),
        ("gres/gpu:a100=1,gres/gpu:v100=2", 3, "v100"),
        ("cpu=4", 0, None),
    ],
)
def test_cards_of_a_tres_list(tmp_path: Path, tres: str, gpus: int, model: str | None) -> None:
    jobs, _ = read_trace(write(tmp_path / "j", SACCT, sacct_row(AllocTRES=tres)))
    assert (jobs[0].gpus, jobs[0].gpu_model) == (gpus, model)


def test_clock_times_where_raw_seconds_are_absent(tmp_path: Path) -> None:
    text = "JobID|Submit|Start|Elapsed|State|Timelimit\n"
    text += "7_3|2026-03-01T10:00:00|2026-03-01T10:00:00|1-02:03:04|TIMEOUT|UNLIMITED\n"
    jobs, _ = read_trace(write(tmp_path / "j", text))
    assert jobs[0].id == "7_3"
    assert jobs[0].runtime_seconds == 86400 + 2 * 3600 + 3 * 60 + 4
    assert jobs[0].limit_seconds is None


def test_swf(tmp_path: Path) -> None:
    rows = "; Version: 2.2\n1 0 10 60 4 -1 -1 4 120 -1 1 3 1 5 1 -1 -1 -1\n"
    rows += "2 5 -1 -1 4 -1 -1 4 120 -1 5 3 1 5 1 -1 -1 -1\n"
    jobs, report = read_trace(write(tmp_path / "t.swf", rows))
    assert report.format == "swf"
    assert report.dropped == {"runtime is not above zero": 1}
    job = jobs[0]
    assert (job.submit, job.start, job.end, job.gpus) == (0.0, 10.0, 70.0, 4)
    assert (job.limit_seconds, job.ended) == (120.0, Ended.COMPLETED)


def test_truncated_gzip_says_where(tmp_path: Path) -> None:
    whole = gzip.compress(
        (SACCT + "".join(sacct_row(JobIDRaw=str(i)) for i in range(5000))).encode()
    )
    path = tmp_path / "jobs.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match=r"breaks off after line \d+ .*copy it again"):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b,c\n1,2,3\n", "is of no known format"),
        ("submit,runtime_seconds\n1,2\n", "Nearest is hybrid, which also needs gpus"),
    ],
)
def test_a_file_of_no_known_format(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(write(tmp_path / "x.csv", text))


def test_a_file_that_lacks_columns_of_the_format_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "timestamp,duration\n")
    with pytest.raises(TraceError, match=r"lacks the column\(s\) num_gpus of philly"):
        read_trace(path, "philly")
    with pytest.raises(TraceError, match="no format 'oracle'; known: sacct, rayjob"):
        read_trace(path, "oracle")
    with pytest.raises(TraceError, match="there is no file"):
        read_trace(tmp_path / "absent.csv")


def test_bad_rows_of_our_own_schema(tmp_path: Path) -> None:
    text = "id,submit,runtime_seconds,gpus,start,end,ended\n"
    text += "a,0,10,1,,,\na,1,10,1,,,\nb,2,-3,1,,,\nc,3,x,1,,,\nd,4,10,-1,,,\n"
    text += "e,5,10,1,9,8,\nf,6,inf,1,,,\ng,7,10,1,,,exploded\n,8,10,1,,,completed\n"
    jobs, report = read_trace(write(tmp_path / "own.csv", text))
    assert [job.id for job in jobs] == ["a", "row-9"]
    assert report.dropped == {
        "duplicate id": 1,
        "runtime is not above zero": 1,
        "runtime_seconds is not a number": 2,
        "gpus is negative": 1,
        "end before start": 1,
        "ended exploded is not one of completed, failed, cancelled, timeout, lost, unknown": 1,
    }


jobs_of_any_kind = st.builds(
    TraceJob,
    id=st.uuids().map(str),
    submit=st.floats(0, 2e9),
    runtime_seconds=st.floats(0.1, 1e7),
    gpus=st.integers(0, 512),
    user=st.text(st.characters(categories=("L", "N")), max_size=8),
    name=st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12),
    start=st.none() | st.floats(0, 1e9),
    limit_seconds=st.none() | st.floats(1, 1e6),
    ended=st.sampled_from(Ended),
)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    @settings(max_examples=20, deadline=None)
    @given(st.lists(jobs_of_any_kind, max_size=20, unique_by=lambda job: job.id))
    def check(jobs: list[TraceJob]) -> None:
        path = tmp_path_factory.mktemp("trace") / name
        assert write_trace(path, jobs) == len(jobs)
        trace = open_trace(path)
        found = list(trace.jobs)
        assert not trace.report.dropped
        assert [j.id for j in found] == [j.id for j in jobs]
        for a, b in zip(found, jobs, strict=True):
            assert (a.submit, a.runtime_seconds, a.gpus) == (b.submit, b.runtime_seconds, b.gpus)
            assert (a.start, a.limit_seconds, a.ended) == (b.start, b.limit_seconds, b.ended)

    check()


def test_a_trace_is_written_by_its_ending(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"end the name in \.csv, \.csv\.gz or \.parquet"):
        write_trace(tmp_path / "t.xlsx", [])
    (tmp_path / "no.parquet").write_text("not parquet")
    with pytest.raises(TraceError, match="is no Parquet file"):
        read_trace(tmp_path / "no.parquet")


def test_a_trace_that_breaks_off_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    def broken() -> Iterator[TraceJob]:
        yield TraceJob("a", 0.0, 1.0, 1)
        raise TraceError("breaks off")

    for name in ("t.csv", "t.csv.gz", "t.parquet"):
        path = tmp_path / name
        path.write_text("as it was")
        with pytest.raises(TraceError, match="breaks off"):
            write_trace(path, broken())
        assert path.read_text() == "as it was"
    assert len(list(tmp_path.iterdir())) == 3


def test_describe_spreads_demand_exactly() -> None:
    jobs = generate(Workload(jobs=500, cards=16), seed=3)
    told = describe(jobs)
    assert told.jobs == told.gpu_jobs == 500
    assert told.gpu_hours == pytest.approx(sum(j.gpus * j.runtime_seconds for j in jobs) / 3600)
    last = max(j.submit for j in jobs)
    inside = sum(j.gpus * (min(j.submit + j.runtime_seconds, last) - j.submit) / 3600 for j in jobs)
    assert sum(told.demand) * told.span_hours / SLICES == pytest.approx(inside)
    assert describe([]).jobs == 0


def test_generated_load_is_the_load_asked_for() -> None:
    jobs = generate(Workload(jobs=20_000, cards=64, load=0.8, arrival_cv=1.0), seed=1)
    span = jobs[-1].submit - jobs[0].submit
    assert sum(j.gpus * j.runtime_seconds for j in jobs) / (64 * span) == pytest.approx(
        0.8, rel=0.1
    )
    assert generate(Workload(jobs=10), seed=1) == generate(Workload(jobs=10), seed=1)


@pytest.mark.parametrize(
    ("path", "kept", "dropped"), [(PHILLY, 82_247, 0), (DRAC, 296_700, 0), (OPENB, 7_255, 897)]
)
def test_real_traces(path: Path, kept: int, dropped: int) -> None:
    _, report = read_trace(real(path))
    assert (report.kept, report.dropped.total()) == (kept, dropped)
