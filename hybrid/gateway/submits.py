"""Group commit: submits that come together share one transaction, and so one wait for the disk.

Each is acknowledged only when its own row is on disk.
"""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import IntegrityError

from hybrid.store.engine import Store
from hybrid.store.jobs import JobExists, NewJob, add_jobs

#: One transaction takes at most this many.
LARGEST_GROUP = 256
_Waiting = tuple[NewJob, "asyncio.Future[None]"]


class Submits:
    """Writes jobs in groups; used from one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None

    async def add(self, job: NewJob) -> None:
        """Return once the job is durable. Raises `JobExists`, or what the database raises."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, done))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all())
        await done

    async def _write_all(self) -> None:
        """While one group is being written, the next one gathers."""
        while self._waiting:
            group = self._waiting[:LARGEST_GROUP]
            del self._waiting[: len(group)]
            try:
                taken = await asyncio.to_thread(self._write, [job for job, _ in group])
            except Exception as error:  # noqa: BLE001  (handed to every caller of the group)
                for _, done in group:
                    if not done.done():
                        done.set_exception(error)
                continue
            for position, (job, done) in enumerate(group):
                if done.done():
                    continue
                if position in taken:
                    done.set_exception(JobExists(job.id))
                else:
                    done.set_result(None)

    def _write(self, jobs: list[NewJob]) -> set[int]:
        try:
            with self._store.write() as session:
                return add_jobs(session, jobs)
        except IntegrityError:
            # Another gateway took one of the ids in between: now it can be seen.
            with self._store.write() as session:
                return add_jobs(session, jobs)
