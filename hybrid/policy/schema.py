"""Validate the tables of a policy file against the fields of `hybrid.core.policy`."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, get_type_hints

from hybrid.core.policy import Policy


class PolicyError(Exception):
    """A policy file is wrong: says the file, the line, the key, the value and the rule."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One documented key of a policy."""

    key: str
    kind: str
    default: object
    unit: str
    doc: str


def knobs() -> list[Knob]:
    """Every key of a policy with its default, unit and meaning, in file order."""
    found = []
    for section in dataclasses.fields(Policy):
        section_type = _hints(Policy)[section.name]
        for item in dataclasses.fields(section_type):
            default = getattr(section_type(), item.name)
            found.append(
                Knob(
                    f"{section.name}.{item.name}",
                    _kind_name(_hints(section_type)[item.name]),
                    default,
                    str(item.metadata.get("unit", "")),
                    str(item.metadata.get("doc", "")),
                )
            )
    return found


def build(document: Mapping[str, Any], text: str, file: str) -> Policy:
    """The policy that a parsed TOML document describes. Raises `PolicyError`."""
    source = _Source(file, text)
    sections = {f.name: _hints(Policy)[f.name] for f in dataclasses.fields(Policy)}
    built = {}
    for name, table in document.items():
        if name not in sections:
            raise source.unknown(name, "", sections)
        if not isinstance(table, Mapping):
            raise source.error(name, table, "must be a table")
        built[name] = _section(sections[name], name, table, source)
    return Policy(**built)


def _section(kind: type, name: str, table: Mapping[str, Any], source: _Source) -> Any:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    hints = _hints(kind)
    values = {}
    for key, value in table.items():
        if key not in fields:
            raise source.unknown(key, f"{name}.", fields)
        path = f"{name}.{key}"
        values[key] = _value(hints[key], value, path, fields[key].metadata.get("minimum"), source)
    return kind(**values)


def _value(hint: Any, value: Any, path: str, minimum: float | None, source: _Source) -> Any:
    if hint in (float, int, Decimal):
        return _number(hint, value, path, minimum, source)
    if hint is str:
        if not isinstance(value, str):
            raise source.error(path, value, "must be a string")
        return str(value)
    if hint == tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise source.error(path, value, "must be a list of strings")
        return tuple(str(item) for item in value)
    item_type = hint.__args__[1]
    if not isinstance(value, Mapping):
        raise source.error(path, value, "must be a table of numbers")
    return {
        str(key): _number(item_type, item, f"{path}.{key}", None, source)
        for key, item in value.items()
    }


def _number(kind: Any, value: Any, path: str, minimum: float | None, source: _Source) -> Any:
    # A quoted decimal is welcome for money: TOML numbers are binary floats.
    if kind is Decimal and isinstance(value, str):
        try:
            value = Decimal(value)
        except ArithmeticError:
            raise source.error(path, value, "must be a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise source.error(path, value, "must be a number")
    if not math.isfinite(value):
        raise source.error(path, value, "must be a finite number")
    if kind is int and value != int(value):
        raise source.error(path, value, "must be a whole number")
    if minimum is not None and value < minimum:
        raise source.error(path, value, f"must be at least {minimum:g}")
    if kind is Decimal:
        return value if isinstance(value, Decimal) else Decimal(str(value))
    return kind(value)


@dataclass(frozen=True, slots=True)
class _Source:
    file: str
    text: str

    def error(self, path: str, value: object, rule: str) -> PolicyError:
        return PolicyError(
            f"{self.file}, line {self.line_of(path)}: {path} = {value!r} {rule}; "
            f"see `hybrid policy explain {path}`"
        )

    def unknown(self, key: str, prefix: str, known: Mapping[str, object]) -> PolicyError:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {prefix}{near[0]}?" if near else f"known: {', '.join(known)}"
        return PolicyError(
            f"{self.file}, line {self.line_of(prefix + key)}: unknown key {prefix}{key}; {hint}"
        )

    def line_of(self, path: str) -> int:
        """The line on which the key stands, searched below its table's header."""
        *tables, key = path.split(".")
        start = 0
        lines = self.text.splitlines()
        for depth in range(len(tables), 0, -1):
            header = re.compile(
                r"\s*\[\s*" + r"\s*\.\s*".join(map(re.escape, tables[:depth])) + r"\s*\]"
            )
            at = next((i for i, line in enumerate(lines) if header.match(line)), None)
            if at is not None:
                start = at
                break
        word = re.compile(rf"\s*\[?\s*\"?{re.escape(key)}\"?\s*[=\]]")
        for number in range(start, len(lines)):
            if word.match(lines[number]):
                return number + 1
        return start + 1


def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _kind_name(hint: Any) -> str:
    names = {float: "number", int: "whole number", Decimal: "money", str: "text"}
    if hint in names:
        return names[hint]
    return "list of text" if hint == tuple[str, ...] else "table of numbers"
