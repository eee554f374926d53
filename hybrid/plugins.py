"""Plugins: providers and strategies that installed distributions announce by entry point.

Nothing is imported until it is needed; one that fails is named with its reason, the rest works.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

PROVIDERS = "hybrid.providers"
STRATEGIES = "hybrid.strategies"


class PluginError(Exception):
    """A plugin could not be loaded: says which, from which package, and what it raised."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """An announced plugin, not yet imported."""

    name: str
    package: str
    entry: EntryPoint

    def load(self) -> Any:
        """The object that the entry point names. Raises `PluginError`."""
        try:
            return self.entry.load()
        # A plugin is foreign code: whatever its import raises is its own and is reported.
        except Exception as error:
            raise PluginError(
                f"plugin {self.name!r} ({self.entry.value} of {self.package}) failed to import: "
                f"{type(error).__name__}: {error}. Reinstall it: pip install --force-reinstall "
                f"{self.package}"
            ) from error


def discover(group: str) -> dict[str, Plugin]:
    """Every plugin of a group by name. Two of one name: the first in package order is taken."""
    found: dict[str, Plugin] = {}
    announced = sorted(
        entry_points(group=group), key=lambda e: (e.dist.name if e.dist else "", e.name)
    )
    for entry in announced:
        package = entry.dist.name if entry.dist else "an unknown package"
        found.setdefault(entry.name, Plugin(entry.name, package, entry))
    return found
