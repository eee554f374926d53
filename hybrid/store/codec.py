"""Core values to and from the JSON of the tables."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

from pydantic import TypeAdapter

from hybrid.core.model import Alternative, Gang, NodeShare, Offer, Requirements
from hybrid.store.tables import Json

_gang = TypeAdapter(Gang)
_requirements = TypeAdapter(Requirements)
_share = TypeAdapter(NodeShare)
_offer = TypeAdapter(Offer)
_alternative = TypeAdapter(Alternative)


def dump_gang(gang: Gang) -> Json:
    return cast(Json, _gang.dump_python(gang, mode="json"))


def load_gang(data: Json) -> Gang:
    return _gang.validate_python(data)


def dump_requirements(requirements: Requirements) -> Json:
    return cast(Json, _requirements.dump_python(requirements, mode="json"))


def load_requirements(data: Json) -> Requirements:
    return _requirements.validate_python(data)


@functools.lru_cache(maxsize=16_384)
def requirements_from(text: str) -> Requirements:
    """From the JSON text of the column. Most jobs ask for what another job asked for: they share
    one object."""
    return _requirements.validate_json(text)


def dump_shares(shares: Sequence[NodeShare]) -> list[Json]:
    return [cast(Json, _share.dump_python(share, mode="json")) for share in shares]


def load_shares(data: Sequence[Json]) -> tuple[NodeShare, ...]:
    return tuple(_share.validate_python(item) for item in data)


def dump_offer(offer: Offer) -> Json:
    return cast(Json, _offer.dump_python(offer, mode="json"))


def load_offer(data: Json) -> Offer:
    return _offer.validate_python(data)


def dump_alternatives(alternatives: Sequence[Alternative]) -> list[Json]:
    return [cast(Json, _alternative.dump_python(item, mode="json")) for item in alternatives]
