"""`make bench`: measure, print tables, write build/bench/*.json.

Each figure that compares is a ratio within this run, on this machine, against the real peer.
`--publish` appends the tables with machine and commit to the benchmarks page.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import gateway, planner
from tests.bench.figures import Figure

OUT = Path("build/bench")
PAGE = Path("hybrid/docs/explanation/benchmarks.md")
PARTS = {"planner": planner.run, "gateway": gateway.run}


def main() -> None:
    wanted = [name for name in sys.argv[1:] if not name.startswith("-")] or list(PARTS)
    OUT.mkdir(parents=True, exist_ok=True)
    tables = []
    for name in wanted:
        figures = PARTS[name]()
        (OUT / f"{name}.json").write_text(json.dumps([f.as_dict() for f in figures], indent=1))
        tables.append(table(name, figures))
        print(tables[-1], flush=True)
    if "--publish" in sys.argv:
        publish("\n".join(tables))


def table(name: str, figures: list[Figure]) -> str:
    lines = [f"### {name}", "", "| figure | value | unit | ratio | peer | peer's value |"]
    lines.append("|---|---|---|---|---|---|")
    for f in figures:
        peer = "" if f.peer_value is None else f"{f.peer_value:.4g}"
        ratio = "" if f.ratio is None else f"{f.ratio:.3g}"
        lines.append(f"| {f.name} | {f.value:.4g} | {f.unit} | {ratio} | {f.ratio_to} | {peer} |")
    return "\n".join([*lines, ""])


def publish(text: str) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    head = f"\n## {datetime.now(UTC):%Y-%m-%d}, commit {commit}, {machine}\n\n"
    with PAGE.open("a") as page:
        page.write(head + text)


if __name__ == "__main__":
    main()
