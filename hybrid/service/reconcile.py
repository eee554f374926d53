"""Theirs without ours: what exists out there under our name and no open lease explains.

(Ours without theirs is each lease driver's own business: it asks after its lease's health.)
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

import structlog

from hybrid.core.lifecycle import LeaseState
from hybrid.core.model import Gang, LeaseKind
from hybrid.ports import LeaseBackend, LeaseTask
from hybrid.service.deps import ServiceDeps
from hybrid.service.records import reading, task_of
from hybrid.store.leases import get_lease
from hybrid.store.tables import Lease

log = structlog.get_logger(__name__)

#: A thing younger than this may belong to an intent whose row we have not looked at yet.
MINIMUM_AGE_SECONDS = 60.0


async def reconcile(deps: ServiceDeps, first_seen: dict[str, datetime]) -> int:
    """Release every stray. `first_seen` remembers strays between calls: only one that stays
    unexplained for `MINIMUM_AGE_SECONDS` is acted on. Returns how many were released."""
    released = 0
    strays: set[str] = set()
    for kind, backend in deps.backends.items():
        found = await backend.found()
        for lease_id, what in found.items():
            lease = await reading(deps.store, partial(get_lease, lease_id=lease_id))
            if lease is not None and lease.state is not LeaseState.RELEASED:
                continue
            strays.add(lease_id)
            now = deps.clock.now()
            since = first_seen.setdefault(lease_id, now)
            if now - since < timedelta(seconds=MINIMUM_AGE_SECONDS):
                continue
            log.warning("reconcile.stray", lease=lease_id, kind=str(kind), what=what)
            if await _release(deps, backend, kind, lease_id, lease):
                released += 1
    for lease_id in first_seen.keys() - strays:
        del first_seen[lease_id]
    return released


async def _release(
    deps: ServiceDeps,
    backend: LeaseBackend,
    kind: LeaseKind,
    lease_id: str,
    lease: Lease | None,
) -> bool:
    task = (
        task_of(lease, deps.orchestrator_id)
        if lease is not None
        else LeaseTask(
            id=lease_id,
            kind=kind,
            token="",
            cluster_token="",
            gang=Gang(),
            expires_at=deps.clock.now(),
            tags={"hybrid-orchestrator": deps.orchestrator_id, "hybrid-lease": lease_id},
        )
    )
    remains = await backend.release(task)
    if remains is not None:
        log.info("reconcile.stray-remains", lease=lease_id, remains=remains)
    return remains is None
