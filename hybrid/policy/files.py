"""Find, read and name policy files: the installation's own folder first, then the shipped ones."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib.util
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybrid.core.burst import Strategy
from hybrid.core.policy import Policy
from hybrid.policy.schema import PolicyError, build

#: Strategy name → a function that loads its class (from the entry point `hybrid.strategies`).
Strategies = Mapping[str, Callable[[], type[Any]]]


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A valid policy with its strategy, and the exact text it came from."""

    name: str
    source: str
    text: str
    sha256: str
    policy: Policy
    strategy: Strategy


def parse(name: str, text: str, source: str, strategies: Strategies) -> LoadedPolicy:
    """Raises `PolicyError` naming file, line, key, value and rule."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"{source}: not valid TOML: {error}") from error
    policy = build(document, text, source)
    return LoadedPolicy(
        name=name,
        source=source,
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        policy=policy,
        strategy=_strategy(policy, source, strategies),
    )


def _strategy(policy: Policy, source: str, strategies: Strategies) -> Strategy:
    name = policy.burst.strategy
    if name not in strategies:
        near = difflib.get_close_matches(name, strategies, n=1)
        hint = f"did you mean {near[0]}?" if near else ""
        raise PolicyError(
            f"{source}: burst.strategy = {name!r} is not installed; "
            f"installed: {', '.join(sorted(strategies))}. {hint}".rstrip()
        )
    kind = strategies[name]()
    known = {f.name for f in dataclasses.fields(kind)}
    for key, value in policy.burst.params.items():
        if key not in known:
            takes = ", ".join(sorted(known)) or "no parameters"
            raise PolicyError(f"{source}: burst.params.{key}: strategy {name} takes {takes}")
        if value < 0:
            raise PolicyError(f"{source}: burst.params.{key} = {value!r} must be at least 0")
    strategy: Strategy = kind(**policy.burst.params)
    return strategy


def search_path(own: Path | None) -> list[Path]:
    """The folders that are searched, first match wins."""
    spec = importlib.util.find_spec("hybrid_policies")
    shipped = Path(spec.origin).parent if spec is not None and spec.origin else None
    return [folder for folder in (own, shipped) if folder is not None]


def find_policy(name: str, own: Path | None) -> Path:
    """The file of a policy, by name or by path. Raises `PolicyError` with the nearest name."""
    if "/" in name or name.endswith(".toml"):
        path = Path(name)
        if path.is_file():
            return path
        raise PolicyError(f"no policy file at {path}")
    for folder in search_path(own):
        path = folder / f"{name}.toml"
        if path.is_file():
            return path
    known = sorted(policy_names(own))
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise PolicyError(f"no policy named {name!r}; {hint}known: {', '.join(known)}")


def policy_names(own: Path | None) -> dict[str, Path]:
    """Every policy that can be found, by name."""
    found: dict[str, Path] = {}
    for folder in reversed(search_path(own)):
        for path in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
            found[path.stem] = path
    return found


def load(name: str, own: Path | None, strategies: Strategies) -> LoadedPolicy:
    path = find_policy(name, own)
    return parse(path.stem, path.read_text(), str(path), strategies)
