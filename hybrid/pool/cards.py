"""Fake cards: what a node without GPUs declares so that everything else can be tried on it.

Imports nothing but the standard library: it is shipped to nodes inside the agent.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

GIB = 1024**3
#: Memory in GiB and board power in watts of well-known cards (vendor data sheets, 2025).
KNOWN_MODELS = {
    "T4": (16, 70),
    "L4": (24, 72),
    "A10": (24, 150),
    "P100": (16, 250),
    "V100": (32, 300),
    "A40": (48, 300),
    "L40S": (48, 350),
    "A100": (80, 400),
    "H100": (80, 700),
    "H200": (141, 700),
    "B200": (180, 1000),
}
MAXIMUM_PER_NODE = 64


@dataclass(frozen=True)
class FakeCard:
    """A declared card. The uuid is the same after every restart of its node."""

    uuid: str
    model: str
    memory_bytes: int
    index: int
    watts: int


def parse_fake_gpus(text: str, node: str) -> tuple[FakeCard, ...]:
    """``MODEL:COUNT[:MEMORY_GIB[:WATTS]]``, comma-separated: ``A100:2,T4:2`` or ``X1:1:96:500``.

    Raises ValueError that says which part is wrong and what would be right.
    """
    cards: list[FakeCard] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        model, count, memory_gib, watts = _entry(part)
        for _ in range(count):
            index = len(cards)
            digest = hashlib.sha256(f"{node}/{index}/{model}".encode()).hexdigest()[:12]
            cards.append(FakeCard(f"GPU-fake-{digest}", model, memory_gib * GIB, index, watts))
    if len(cards) > MAXIMUM_PER_NODE:
        raise ValueError(f"{len(cards)} fake cards on one node; at most {MAXIMUM_PER_NODE}")
    return tuple(cards)


def _entry(part: str) -> tuple[str, int, int, int]:
    fields = part.split(":")
    example = "write MODEL:COUNT[:MEMORY_GIB[:WATTS]], for example A100:2 or X1:1:96:500"
    if not 2 <= len(fields) <= 4 or not fields[0]:
        raise ValueError(f"fake card {part!r}: {example}")
    model = fields[0]
    numbers = []
    for name, field in zip(("COUNT", "MEMORY_GIB", "WATTS"), fields[1:], strict=False):
        if not field.isdigit() or int(field) < 1:
            raise ValueError(f"fake card {part!r}: {name} is {field!r}, not a number; {example}")
        numbers.append(int(field))
    if model not in KNOWN_MODELS and len(numbers) < 2:
        raise ValueError(
            f"fake card {part!r}: the memory of {model!r} is not known; {example}. "
            f"Known: {', '.join(KNOWN_MODELS)}"
        )
    memory, watts = KNOWN_MODELS.get(model, (0, 300))
    return (
        model,
        numbers[0],
        numbers[1] if len(numbers) > 1 else memory,
        numbers[2] if len(numbers) > 2 else watts,
    )
