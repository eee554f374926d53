"""One rented machine: boots, runs its user data as cloud-init would, ends when told or when its
time is over. Run detached as ``python -m hybrid_local.machine DIRECTORY``.

`machine.json` (written by the provider) says what it is, `state.json` where it stands. A file
`terminate` or `poweroff` ends it, the latter from the inside (``$HYBRID_POWEROFF``).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybrid.lease.guard import die_with_parent, end_descendants, write_json

POLL_SECONDS = 0.1
GRACE_SECONDS = 3.0


class Machine:
    """The machine's own side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec: Mapping[str, Any] = json.loads((folder / "machine.json").read_text())
        self.state: dict[str, Any] = {"state": "pending", "pid": os.getpid()}
        self.reason = ""
        self.user_data: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        self.lock = (self.folder / "machine.lock").open("a")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # powered on twice
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans of the machine stay on the machine
        signal.signal(signal.SIGTERM, self._on_signal)
        self._save()
        booted = time.monotonic() + self.spec["boot_delay_seconds"]
        started = False
        while not (why := self._why_end()):
            if not started and time.monotonic() >= booted:
                started = True
                self._boot()
            time.sleep(POLL_SECONDS)
        self.state.update(state="stopping", reason=why)
        self._save()
        self._shut_down()
        self.state.update(state="gone", ended_at=time.time())
        self._save()

    def _shut_down(self) -> None:
        """What the user data became may tidy up for a moment; then the power goes."""
        if self.user_data is not None and self.user_data.poll() is None:
            self.user_data.terminate()
            try:
                self.user_data.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self.user_data.kill()
        end_descendants()

    def _on_signal(self, number: int, _frame: object) -> None:
        self.reason = f"signal {number}"

    def _why_end(self) -> str:
        lied_until = self.spec["created_at"] + self.spec["terminate_lies_seconds"]
        if (self.folder / "terminate").exists() and time.time() > lied_until:
            return "terminated by the user"
        if (self.folder / "poweroff").exists():
            return "shut down from the inside"
        if time.time() >= self.spec["expires_at"]:
            return "its maximum run time is over"
        reclaim = self.spec["reclaim_after_seconds"]
        if reclaim and time.time() > self.spec["created_at"] + reclaim:
            return "reclaimed"
        if (self.folder / "reclaim").exists():
            return "reclaimed"
        return self.reason

    def _boot(self) -> None:
        self.state["state"] = "running"
        self._save()
        if self.spec["hang_at_boot"]:
            return
        with (self.folder / "boot.log").open("ab") as log:
            self.user_data = subprocess.Popen(
                ["bash", str(self.folder / "user-data.sh")],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def _environment(self) -> dict[str, str]:
        clean = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("RAY_", "HYBRID_")) and k != "CUDA_VISIBLE_DEVICES"
        }
        cards = [f"GPU-{self.spec['id']}-{i}" for i in range(self.spec["gpus"])]
        return {
            **clean,
            "HYBRID_MACHINE_DIR": str(self.folder),
            "HYBRID_MACHINE_ADDRESS": self.spec["address"],
            "HYBRID_POWEROFF": f"touch '{self.folder / 'poweroff'}'",
            "HYBRID_PYTHON": sys.executable,
            "CUDA_VISIBLE_DEVICES": ",".join(cards),
        }

    def _save(self) -> None:
        write_json(str(self.folder / "state.json"), self.state)


def main() -> None:
    Machine(Path(sys.argv[1])).run()


if __name__ == "__main__":
    main()
