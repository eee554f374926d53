"""The provider plugins of this installation: loaded once, asked for their offers each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hybrid.core.model import Offer
from hybrid.plugins import PROVIDERS, PluginError, discover
from hybrid.ports import Provider
from hybrid.service.deps import OffersSeen


@dataclass(frozen=True, slots=True)
class Installed:
    """Providers that work, and why the others do not (by name)."""

    providers: Mapping[str, Provider] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


def load_providers() -> Installed:
    """Every announced provider. One that fails is named; the rest works."""
    providers: dict[str, Provider] = {}
    packages: dict[str, str] = {}
    errors: dict[str, str] = {}
    for name, plugin in discover(PROVIDERS).items():
        packages[name] = plugin.package
        try:
            made = plugin.load()()
        except PluginError as error:
            errors[name] = str(error)
            continue
        except Exception as error:  # noqa: BLE001  (foreign code: whatever it raises is reported)
            errors[name] = f"provider {name} could not be set up: {type(error).__name__}: {error}"
            continue
        if isinstance(made, Provider):
            providers[name] = made
        else:
            errors[name] = f"plugin {name} gives {type(made).__name__}, which is no Provider"
    return Installed(providers, packages, errors)


def offers_of(providers: Mapping[str, Provider]) -> Callable[[], OffersSeen]:
    """A function that asks every provider; one that fails takes no other down."""

    def ask() -> OffersSeen:
        offers: list[Offer] = []
        errors: dict[str, str] = {}
        for name, provider in sorted(providers.items()):
            try:
                offers.extend(provider.offers())
            except Exception as error:  # noqa: BLE001  (foreign code, see above)
                errors[name] = f"offers could not be listed: {type(error).__name__}: {error}"
        return OffersSeen(tuple(offers), errors)

    return ask
