"""The points at which the crash test kills the controller.

Two kinds: each step that a transaction records (`job:starting`, `lease:booting` …) is reached
right *after* its commit, which is right *before* the outside call that it announces; and each
outside call has a point right after it, *before* its result is stored.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass, field

#: Points after an outside call: the answer is here, the row does not know it yet.
AFTER_CALLS = (
    "acquired:pool",
    "acquired:cloud",
    "submitted",
    "release-asked:pool",
    "release-asked:cloud",
)


@dataclass(slots=True)
class Checkpoints:
    """Counts the points that are passed; dies at `crash_at` = ``name`` or ``name#n``."""

    crash_at: str = ""
    passed: Counter[str] = field(default_factory=Counter)

    def __call__(self, name: str) -> None:
        self.passed[name] += 1
        if not self.crash_at:
            return
        wanted, _, nth = self.crash_at.partition("#")
        if name == wanted and self.passed[name] == int(nth or 1):
            os.kill(os.getpid(), signal.SIGKILL)

    def steps(self, names: tuple[str, ...]) -> None:
        """The listener for `Store.on_commit`."""
        for name in names:
            self(name)
