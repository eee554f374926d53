"""Could a job ever run? Asked at the door, and again when the pool or the offers change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hybrid.core.model import Gang, Node, Offer, Place, Requirements
from hybrid.core.place import model_matches


def why_never(
    requirements: Requirements, nodes: Iterable[Node], offers: Iterable[Offer]
) -> str | None:
    """None if some place could hold the gang, were it empty; else a sentence that says what is
    the largest that fits. Busy, cordoned and quarantined cards count: they come back."""
    gang, place = requirements.gang, requirements.place
    nodes, offers = tuple(nodes), tuple(offers)
    on_pool = place is not Place.CLOUD and fits_pool(gang, nodes)
    rented = place is not Place.ONPREM and any(fits_offer(gang, offer) for offer in offers)
    if on_pool or rented:
        return None
    known = []
    if place is not Place.CLOUD:
        known.append(f"the pool: {_largest_on_pool(gang, nodes)}")
    if place is not Place.ONPREM:
        known.append(f"offers for rent: {_largest_offer(offers)}")
    return (
        f"no place can ever hold this gang ({gang.describe()}). "
        f"The largest that fits on one node, by model, of {'; of '.join(known)}."
    )


def fits_pool(gang: Gang, nodes: Iterable[Node]) -> bool:
    """Does the gang fit the pool when nothing else runs? One card model for all its nodes."""
    able: Counter[str] = Counter()
    for node in nodes:
        have = dict(node.resources)
        if gang.cpus > node.cpus or gang.memory_bytes > node.memory_bytes:
            continue
        if any(have.get(name, 0.0) < amount for name, amount in gang.resources):
            continue
        if gang.gpus_per_node == 0:
            able[""] += 1
            continue
        healthy_or_not = Counter(
            card.model
            for card in node.cards
            if model_matches(gang.gpu_model, card.model)
            and card.memory_bytes >= gang.gpu_memory_bytes
        )
        for model, count in healthy_or_not.items():
            if count >= gang.gpus_per_node:
                able[model] += 1
    return any(count >= gang.nodes for count in able.values())


def fits_offer(gang: Gang, offer: Offer) -> bool:
    """Does one machine of this offer hold the gang? Gangs over several nodes are not rented."""
    return (
        gang.nodes == 1
        and not gang.resources
        and offer.gpus >= gang.gpus_per_node
        and (gang.gpus_per_node > 0 or offer.gpus == 0)
        and offer.cpus >= gang.cpus
        and offer.memory_bytes >= gang.memory_bytes
        and (
            gang.gpus_per_node == 0
            or (
                model_matches(gang.gpu_model, offer.gpu_model or "")
                and offer.gpu_memory_bytes >= gang.gpu_memory_bytes
            )
        )
    )


def _largest_on_pool(gang: Gang, nodes: tuple[Node, ...]) -> str:
    best: Counter[str] = Counter()
    for node in nodes:
        for model, count in Counter(card.model for card in node.cards).items():
            best[model] = max(best[model], count)
    cpus = max((node.cpus for node in nodes), default=0.0)
    cards = ", ".join(f"{count} {model}" for model, count in sorted(best.items()))
    return f"{cards or 'no cards'}, {cpus:g} CPUs ({len(nodes)} nodes)"


def _largest_offer(offers: tuple[Offer, ...]) -> str:
    best: Counter[str] = Counter()
    for offer in offers:
        if offer.gpu_model:
            best[offer.gpu_model] = max(best[offer.gpu_model], offer.gpus)
    return ", ".join(f"{n} {model}" for model, n in sorted(best.items())) or "none"
