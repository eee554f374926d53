"""One measured figure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """`ratio_to` names the peer that `peer_value` (same unit, same run) was measured on."""

    name: str
    value: float
    unit: str
    ratio_to: str = ""
    peer_value: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if not self.peer_value else self.value / self.peer_value

    def as_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "ratio_to": self.ratio_to,
            "peer_value": self.peer_value,
            "ratio": self.ratio,
        }


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
