"""The pool's future: when will there be room, and what must be left alone until then?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from hybrid.core.lifecycle import LeaseState
from hybrid.core.model import Gang, LeaseView, NodeShare
from hybrid.core.place import Room


@dataclass(frozen=True, slots=True)
class Reservation:
    """The start promised to the first blocked job. `start` is None where nobody can tell."""

    job_id: str
    gang: Gang
    start: datetime | None
    shares: tuple[NodeShare, ...]

    def held(self, room: Room) -> tuple[NodeShare, ...]:
        """The part of the reservation that is free in `room` now."""
        return tuple(share for share in map(room.still_free, self.shares) if share is not None)


def reserve(
    job_id: str, gang: Gang, room: Room, leases: Iterable[LeaseView], now: datetime
) -> Reservation:
    """Walk the leases in the order of their expected ends until the gang fits.

    Leases whose end cannot be told never end here: the promise must hold. An end that has passed
    already counts as now (it is over any moment). Where no walk makes room, the free cards of
    the nodes where the gang would first fit are held, and no start is promised.
    """
    future = room.copy()
    known = [lease for lease in leases if lease.shares and _end(lease, now) is not None]
    known.sort(key=lambda lease: (_end(lease, now) or now, lease.id))
    for lease in known:
        future.give(lease.shares)
        shares = future.find(gang)
        if shares is not None:
            return Reservation(job_id, gang, max(_end(lease, now) or now, now), shares)
    return Reservation(job_id, gang, None, room.free_beside(gang))


def _end(lease: LeaseView, now: datetime) -> datetime | None:
    """When its cards will be free, if that can be told."""
    if lease.state is LeaseState.RELEASING:
        return now
    return lease.expected_end
