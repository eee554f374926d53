"""The third layer of teardown: find by tag what no live lease explains. Needs no controller."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from hybrid.ports import Instance, InstanceState, Provider

#: Younger machines may belong to a launch whose row is being written.
MINIMUM_AGE = timedelta(seconds=90)


@dataclass(frozen=True, slots=True)
class Leak:
    """A rented machine that carries our tag and that no live lease explains."""

    provider: str
    instance: Instance
    lease_id: str
    age_seconds: float | None


def find_leaks(
    providers: Iterable[Provider],
    orchestrator_id: str,
    live_leases: frozenset[str],
    now: datetime,
    minimum_age: timedelta = MINIMUM_AGE,
) -> list[Leak]:
    """Machines with exactly our orchestrator tag, not gone, older than `minimum_age`, whose
    lease tag names no live lease. Names and prefixes mean nothing."""
    leaks = []
    for provider in providers:
        for machine in provider.instances():
            if machine.tags.get("hybrid-orchestrator") != orchestrator_id:
                continue
            lease_id = machine.tags.get("hybrid-lease", "")
            if machine.state is InstanceState.GONE or lease_id in live_leases:
                continue
            age = now - machine.launched_at if machine.launched_at else None
            if age is not None and age < minimum_age:
                continue
            seconds = age.total_seconds() if age is not None else None
            leaks.append(Leak(provider.name, machine, lease_id, seconds))
    return leaks
