"""Which cards: a mutable picture of free room, indexed so that a look-up walks few nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from hybrid.core.model import Card, Gang, Node, NodeShare

#: CPUs and bytes are floats and sums of floats: differences below this are not real.
_EPSILON = 1e-6


def model_matches(wanted: str | None, model: str) -> bool:
    """Does a card model satisfy the wish? ``A100`` matches ``NVIDIA A100-SXM4-80GB``.

    Compared without case, as whole words: ``A10`` does not match ``A100``.
    """
    if wanted is None:
        return True
    words = _words(model)
    needle = _words(wanted)
    return any(words[i : i + len(needle)] == needle for i in range(len(words)))


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() else " " for c in text.lower()).split()


def suits(card: Card, gang: Gang) -> bool:
    """Would this card do for the gang, were it free?"""
    return (
        card.unusable is None
        and model_matches(gang.gpu_model, card.model)
        and card.memory_bytes >= gang.gpu_memory_bytes
    )


@dataclass(slots=True)
class _Room:
    """What is left of one node: free cards by model, CPUs, bytes."""

    node: Node
    cards: dict[str, list[Card]]
    cpus: float
    memory_bytes: int

    def share_for(self, gang: Gang, model: str | None) -> NodeShare | None:
        """The part this node would give to one member of the gang, or None."""
        if gang.memory_bytes > self.memory_bytes or not _has(self.node, gang):
            return None
        if model is None:
            if gang.cpus > self.cpus + _EPSILON:
                return None
            return NodeShare(self.node.id, (), gang.cpus, gang.memory_bytes)
        free = self.cards.get(model, [])
        if len(free) < gang.gpus_per_node or gang.cpus > self.cpus + _EPSILON:
            return None
        # Cards bring their part of the node's CPUs, so that no job takes those of its neighbour.
        part = self.node.cpus * gang.gpus_per_node / max(1, len(self.node.cards))
        cpus = max(gang.cpus, min(part, self.cpus))
        chosen = tuple(card.uuid for card in free[: gang.gpus_per_node])
        return NodeShare(self.node.id, chosen, round(cpus, 4), gang.memory_bytes)


def _has(node: Node, gang: Gang) -> bool:
    have = dict(node.resources)
    return all(have.get(name, 0.0) >= amount for name, amount in gang.resources)


def _buckets() -> dict[str, dict[int, set[str]]]:
    return defaultdict(lambda: defaultdict(set))


@dataclass(slots=True)
class Room:
    """The free room of the pool, which placements of one round use up."""

    _rooms: dict[str, _Room] = field(default_factory=dict)
    #: model → number of free cards → node ids, for best fit without a walk over all nodes.
    _buckets: dict[str, dict[int, set[str]]] = field(default_factory=_buckets)
    _memory: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Room:
        """Cordoned nodes and unusable or held cards give no room."""
        room = cls()
        for node in nodes:
            if node.cordoned is None:
                room._add(node)
        return room

    def _add(self, node: Node) -> None:
        cards: dict[str, list[Card]] = defaultdict(list)
        for card in node.cards:
            self._memory[card.model] = max(self._memory.get(card.model, 0), card.memory_bytes)
            if card.free:
                cards[card.model].append(card)
        self._rooms[node.id] = _Room(node, dict(cards), node.free_cpus, node.free_memory_bytes)
        for model, free in cards.items():
            self._buckets[model][len(free)].add(node.id)

    def copy(self) -> Room:
        """An independent picture to try things on."""
        twin = Room()
        twin._memory = self._memory
        twin._rooms = {
            name: _Room(r.node, {m: list(c) for m, c in r.cards.items()}, r.cpus, r.memory_bytes)
            for name, r in self._rooms.items()
        }
        for model, sizes in self._buckets.items():
            for size, names in sizes.items():
                twin._buckets[model][size] = set(names)
        return twin

    def find(self, gang: Gang) -> tuple[NodeShare, ...] | None:
        """Best fit: one card model for the whole gang, the least memory that suffices, the
        nodes with the fewest cards left over. None when it does not fit now."""
        if gang.gpus_per_node == 0:
            return self._find_cpus(gang)
        models = [m for m in self._buckets if self._model_suits(m, gang)]
        for model in sorted(models, key=lambda m: (self._memory[m], m)):
            shares = self._find_on(gang, model)
            if shares is not None:
                return shares
        return None

    def _model_suits(self, model: str, gang: Gang) -> bool:
        return model_matches(gang.gpu_model, model) and self._memory[model] >= gang.gpu_memory_bytes

    def _find_on(self, gang: Gang, model: str) -> tuple[NodeShare, ...] | None:
        shares: list[NodeShare] = []
        sizes = self._buckets[model]
        for size in sorted(s for s in sizes if s >= gang.gpus_per_node and sizes[s]):
            for name in sorted(sizes[size]):
                share = self._rooms[name].share_for(gang, model)
                if share is not None:
                    shares.append(share)
                    if len(shares) == gang.nodes:
                        return tuple(shares)
        return None

    def _find_cpus(self, gang: Gang) -> tuple[NodeShare, ...] | None:
        """Jobs without cards go where the fewest cards are, then where the fewest CPUs are."""
        shares: list[NodeShare] = []
        order = sorted(self._rooms.values(), key=lambda r: (len(r.node.cards), r.cpus, r.node.id))
        for room in order:
            share = room.share_for(gang, None)
            if share is not None:
                shares.append(share)
                if len(shares) == gang.nodes:
                    return tuple(shares)
        return None

    def take(self, shares: Sequence[NodeShare]) -> None:
        """Use up what `find` returned."""
        for share in shares:
            room = self._rooms[share.node]
            room.cpus -= share.cpus
            room.memory_bytes -= share.memory_bytes
            taken = set(share.cards)
            for model, free in room.cards.items():
                left = [card for card in free if card.uuid not in taken]
                self._move(model, share.node, len(free), len(left))
                room.cards[model] = left

    def give(self, shares: Sequence[NodeShare]) -> None:
        """Put back what a lease holds, as if it had ended (unusable cards stay out)."""
        for share in shares:
            room = self._rooms.get(share.node)
            if room is None:
                continue
            room.cpus = min(room.node.cpus, room.cpus + share.cpus)
            room.memory_bytes = min(room.node.memory_bytes, room.memory_bytes + share.memory_bytes)
            back = set(share.cards)
            for card in room.node.cards:
                if card.uuid in back and card.unusable is None:
                    free = room.cards.setdefault(card.model, [])
                    self._move(card.model, share.node, len(free), len(free) + 1)
                    free.append(replace(card, held_by=None))

    def still_free(self, share: NodeShare) -> NodeShare | None:
        """The part of `share` that is free now, or None."""
        room = self._rooms.get(share.node)
        if room is None:
            return None
        free = {card.uuid for cards in room.cards.values() for card in cards}
        return replace(
            share,
            cards=tuple(uuid for uuid in share.cards if uuid in free),
            cpus=min(share.cpus, max(0.0, room.cpus)),
            memory_bytes=min(share.memory_bytes, room.memory_bytes),
        )

    def _move(self, model: str, name: str, before: int, after: int) -> None:
        if before != after:
            self._buckets[model][before].discard(name)
            self._buckets[model][after].add(name)

    def free_beside(self, gang: Gang) -> tuple[NodeShare, ...]:
        """All that is free on the node(s) where a gang that does not fit now would first fit:
        the cards that a later job must not take when nobody can say when the gang will start."""
        usable = [
            (sum(suits(card, gang) for card in room.node.cards), room)
            for room in self._rooms.values()
            if _has(room.node, gang)
        ]
        able = [room for total, room in usable if total >= gang.gpus_per_node]
        able.sort(key=lambda r: (-_free_suiting(r, gang), -r.cpus, r.node.id))
        return tuple(
            NodeShare(
                room.node.id,
                tuple(c.uuid for free in room.cards.values() for c in free if suits(c, gang)),
                min(gang.cpus, max(0.0, room.cpus)),
            )
            for room in able[: gang.nodes]
        )


def _free_suiting(room: _Room, gang: Gang) -> int:
    return sum(suits(card, gang) for free in room.cards.values() for card in free)
