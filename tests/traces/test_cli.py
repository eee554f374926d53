"""`hybrid trace` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def hybrid(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybrid.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_generate_import_describe(tmp_path: Path) -> None:
    made, stored = str(tmp_path / "made.csv"), str(tmp_path / "stored.parquet")
    assert hybrid("trace", "generate", made, "--jobs", "50").returncode == 0
    told = hybrid("trace", "import", made, stored)
    assert told.stdout == f"{stored}: 50 jobs\n"
    assert "50 of 50 rows kept" in told.stderr
    described = json.loads(hybrid("--json", "trace", "describe", stored).stdout)
    assert described["jobs"] == described["kept"] == 50
    shown = hybrid("trace", "describe", made).stdout
    assert "GPU-hours" in shown
    assert "demand" in shown


def test_a_file_that_cannot_be_read_is_an_error_in_words(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("submit,runtime_seconds,gpus\n0,-1,1\n")
    ended = hybrid("trace", "describe", str(bad))
    assert ended.returncode == 1
    assert "dropped 1: runtime is not above zero" in ended.stderr
    assert "holds no job that ran" in ended.stderr
    ended = hybrid("trace", "describe", str(bad), "--timezone", "Mars/Olympus")
    assert ended.returncode == 2
    assert "no time zone 'Mars/Olympus'" in ended.stderr
