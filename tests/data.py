"""Where the real data lies, where it is there at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("HYBRID_DATA", Path(__file__).parents[2] / "shared" / "data"))

PHILLY = DATA / "traces" / "philly_2017.csv.gz"
DRAC = DATA / "traces" / "slurm_drac_2021.csv.gz"
OPENB = DATA / "traces" / "openb_2023_pods_gpuspec33.csv.gz"


def real(path: Path) -> Path:
    """`path`, or a skip that says what was left out."""
    if not path.exists():
        pytest.skip(f"{path.name} is not here; set HYBRID_DATA to run this on real data")
    return path
