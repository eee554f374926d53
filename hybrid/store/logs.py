"""The log store: what a job printed, readable as long as the job is known.

A job's folder holds segments whose names sort in reading order: ``000-hybrid`` (our own lines
before the first attempt), ``001-driver`` (exactly the bytes of attempt 1's driver, so that its
size is the offset to take the stream up at), ``001-hybrid`` (our lines after it), ``002-driver``.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from hybrid.ports import Clock

CHUNK_BYTES = 256 * 1024
POLL_SECONDS = 1.0


class LogStore:
    """Append and follow; safe from several threads of one process."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder, self._clock = folder, clock
        self._lock = threading.Lock()
        self._followers: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def say(self, job_id: str, line: str) -> None:
        """One line of Hybrid's own, marked as such, after what is there already."""
        stamp = self._clock.now().strftime("%H:%M:%S")
        with self._lock:
            segments = self._segments(job_id)
            number = segments[-1].name[:3] if segments else "000"
            self._append(job_id, f"{number}-hybrid", f"[hybrid {stamp}] {line}\n".encode())
        self.wake(job_id)

    def say_each(self, lines: Mapping[str, str]) -> None:
        """One line to each job of `lines`."""
        for job_id, line in lines.items():
            self.say(job_id, line)

    def append_driver(self, job_id: str, attempt: int, data: bytes) -> None:
        with self._lock:
            self._append(job_id, f"{attempt:03d}-driver", data)
        self.wake(job_id)

    def driver_size(self, job_id: str, attempt: int) -> int:
        """How many bytes of this attempt's driver log we have."""
        path = self._job_folder(job_id) / f"{attempt:03d}-driver"
        return path.stat().st_size if path.exists() else 0

    def last_driver_line(self, job_id: str, attempt: int) -> str:
        """The last line that this attempt printed, shortened; empty before it printed any."""
        path = self._job_folder(job_id) / f"{attempt:03d}-driver"
        if not path.exists():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 1000))
            lines = file.read().decode(errors="replace").strip().splitlines()
        return lines[-1][-200:] if lines else ""

    def read(self, job_id: str, offset: int = 0, limit: int | None = None) -> bytes:
        """The whole log from byte `offset` on, at most `limit` bytes."""
        parts = []
        for path in self._segments(job_id):
            size = path.stat().st_size
            if offset >= size:
                offset -= size
                continue
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read() if limit is None else file.read(limit)
            offset = 0
            parts.append(data)
            if limit is not None:
                limit -= len(data)
                if limit <= 0:
                    break
        return b"".join(parts)

    async def follow(
        self, job_id: str, is_over: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        """The log from its start, then what comes, until the job is over and all is read.

        `is_over` is asked before each read, so that nothing written before the end is missed.
        """
        offset = 0
        woken = asyncio.Event()
        entry = (asyncio.get_running_loop(), woken)
        self._followers.setdefault(job_id, set()).add(entry)
        try:
            while True:
                over = await is_over()
                data = await asyncio.to_thread(self.read, job_id, offset, CHUNK_BYTES)
                if data:
                    offset += len(data)
                    yield data
                    continue
                if over:
                    return
                try:
                    async with asyncio.timeout(POLL_SECONDS):
                        await woken.wait()
                except TimeoutError:
                    pass
                woken.clear()
        finally:
            self._followers[job_id].discard(entry)
            if not self._followers[job_id]:
                del self._followers[job_id]

    def wake(self, job_id: str) -> None:
        """Something about the job changed: followers look at once."""
        for loop, event in tuple(self._followers.get(job_id, ())):
            loop.call_soon_threadsafe(event.set)

    def delete(self, job_id: str) -> None:
        shutil.rmtree(self._job_folder(job_id), ignore_errors=True)

    def _append(self, job_id: str, segment: str, data: bytes) -> None:
        folder = self._job_folder(job_id)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / segment).open("ab") as file:
            file.write(data)

    def _segments(self, job_id: str) -> list[Path]:
        folder = self._job_folder(job_id)
        if not folder.is_dir():
            return []
        return sorted(folder.iterdir(), key=lambda path: (path.name[:3], path.name[4] == "h"))

    def _job_folder(self, job_id: str) -> Path:
        # A user may call a job "../x" or ".": encoded, no id leaves the folder.
        return self._folder / ("j-" + quote(job_id, safe=""))
