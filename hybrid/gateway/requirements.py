"""From a submit request to `Requirements`: the standard flags and the `hybrid.*` metadata."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, TypeVar

from hybrid.core.model import Gang, MarketChoice, Place, Requirements
from hybrid.core.policy import JobPolicy
from hybrid.core.units import GIB

PREFIX = "hybrid."
MAXIMUM_GPUS = 100_000
MAXIMUM_CPUS = 1_000_000
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"": GIB, "g": GIB, "gb": 10**9, "gib": GIB, "m": 1024**2, "mb": 10**6, "mib": 1024**2}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
Choice = TypeVar("Choice", bound=StrEnum)
T = TypeVar("T")


class BadRequest(ValueError):
    """A submit that cannot be taken: names the field, the value, the rule and a hint."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A submit request whose fields have the types that Ray's own API demands."""

    entrypoint: str
    submission_id: str | None
    runtime_env: Mapping[str, object]
    metadata: Mapping[str, str]
    entrypoint_num_cpus: float | None
    entrypoint_num_gpus: float | None
    entrypoint_memory: int | None
    entrypoint_resources: Mapping[str, float] | None
    entrypoint_label_selector: Mapping[str, str] | None


# --------------------------------------------------------------------------- metadata values


def _whole(key: str, text: str, least: int = 0, most: int = MAXIMUM_GPUS) -> int:
    if not re.fullmatch(r"[+-]?\d+", text.strip()):
        raise BadRequest(f"{key} = {text!r} is not a whole number")
    value = int(text)
    if not least <= value <= most:
        raise BadRequest(f"{key} = {text!r} must be from {least} to {most}")
    return value


def _seconds(key: str, text: str) -> float:
    match = _QUANTITY.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in _SECONDS or float(match.group(1)) <= 0:
        raise BadRequest(f"{key} = {text!r} is not a duration; write 5400, 90m, 1.5h or 2d")
    return float(match.group(1)) * _SECONDS[unit]


def _bytes(key: str, text: str) -> int:
    match = _QUANTITY.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in _BYTES:
        raise BadRequest(f"{key} = {text!r} is not a size; write 40 (GiB), 40GiB or 40960MiB")
    return int(float(match.group(1)) * _BYTES[unit])


def _one_of(kind: type[Choice]) -> Callable[[str, str], Choice]:
    def parse(key: str, text: str) -> Choice:
        try:
            return kind(text.strip().lower())
        except ValueError:
            allowed = ", ".join(kind)
            near = difflib.get_close_matches(text.lower(), list(kind), n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise BadRequest(f"{key} = {text!r} is none of: {allowed}{hint}") from None

    return parse


def _name(key: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", text):
        raise BadRequest(
            f"{key} = {text!r} must be 1-63 letters, digits, '_', '.' or '-', first a letter or "
            "digit"
        )
    return text


def _model(key: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,62}", text.strip()):
        raise BadRequest(f"{key} = {text!r} is no card model; write for example A100")
    return text.strip()


def _money(key: str, text: str) -> Decimal:
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        value = Decimal(-1)
    if not value.is_finite() or value < 0:
        raise BadRequest(f"{key} = {text!r} is not an amount; write for example 12.50")
    return value


def _deadline(key: str, text: str, now: datetime) -> datetime:
    if text.startswith("+"):
        return now + timedelta(seconds=_seconds(key, text[1:]))
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise BadRequest(
            f"{key} = {text!r} must be a moment with its zone (2026-12-24T18:00:00Z) or a "
            "duration from now (+6h)"
        )
    if moment <= now:
        raise BadRequest(f"{key} = {text!r} has passed already")
    return moment.astimezone(UTC)


_PARSERS: Mapping[str, Callable[[str, str], object]] = {
    "gpus": _whole,
    "nodes": lambda key, text: _whole(key, text, 1, 10_000),
    "gpu_model": _model,
    "gpu_memory": _bytes,
    "place": _one_of(Place),
    "market": _one_of(MarketChoice),
    "project": _name,
    "priority": lambda key, text: _whole(key, text, -1000, 1000),
    "max_cost": _money,
    "max_runtime": _seconds,
    "runtime": _seconds,
}
KEYS = (*_PARSERS, "deadline")


def parse_wishes(metadata: Mapping[str, str], now: datetime) -> dict[str, object]:
    """The `hybrid.*` keys of the metadata, parsed. Raises `BadRequest`."""
    wishes: dict[str, object] = {}
    for full, text in metadata.items():
        if not full.startswith(PREFIX):
            continue
        key = full.removeprefix(PREFIX)
        if key == "deadline":
            wishes[key] = _deadline(full, text, now)
        elif key in _PARSERS:
            wishes[key] = _PARSERS[key](full, text)
        else:
            near = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {PREFIX}{near[0]}? " if near else ""
            allowed = ", ".join(PREFIX + name for name in KEYS)
            raise BadRequest(f"unknown metadata key {full} = {text!r}; {hint}known: {allowed}")
    return wishes


# --------------------------------------------------------------------------- the gang


def requirements_of(submission: Submission, defaults: JobPolicy, now: datetime) -> Requirements:
    """What the job needs and wishes. Raises `BadRequest`."""
    wishes = parse_wishes(submission.metadata, now)
    known = {
        "place": wishes.get("place"),
        "market": wishes.get("market"),
        "project": wishes.get("project"),
        "priority": wishes.get("priority"),
        "deadline": wishes.get("deadline"),
        "max_cost": wishes.get("max_cost"),
        "max_runtime_seconds": wishes.get("max_runtime"),
        "runtime_estimate_seconds": wishes.get("runtime"),
    }
    given = {name: value for name, value in known.items() if value is not None}
    return Requirements(gang=_gang(submission, wishes, defaults), **given)  # type: ignore[arg-type]


def _gang(submission: Submission, wishes: Mapping[str, object], defaults: JobPolicy) -> Gang:
    driver_gpus = _amount("entrypoint_num_gpus", submission.entrypoint_num_gpus, MAXIMUM_GPUS)
    driver_cpus = _amount("entrypoint_num_cpus", submission.entrypoint_num_cpus, MAXIMUM_CPUS)
    memory = _amount("entrypoint_memory", submission.entrypoint_memory, 2**60)
    nodes = int(str(wishes.get("nodes", 1)))
    gpus = _total_gpus(driver_gpus, wishes, nodes, defaults)
    resources = submission.entrypoint_resources or {}
    for name, amount in resources.items():
        _amount(f"entrypoint_resources[{name!r}]", amount, MAXIMUM_CPUS)
    # Cards bring their share of the node's CPUs; only a job without cards has a default.
    least_cpus = 0.0 if gpus else defaults.default_cpus
    model, gpu_memory = wishes.get("gpu_model"), wishes.get("gpu_memory", 0)
    return Gang(
        nodes=nodes,
        gpus_per_node=gpus // nodes,
        cpus=driver_cpus or least_cpus,
        memory_bytes=int(memory),
        gpu_model=None if model is None else str(model),
        gpu_memory_bytes=int(str(gpu_memory)),
        resources=tuple(sorted((name, float(amount)) for name, amount in resources.items())),
    )


def _total_gpus(
    driver_gpus: float, wishes: Mapping[str, object], nodes: int, defaults: JobPolicy
) -> int:
    """Cards of the whole gang. The driver's own are part of it."""
    asked = wishes.get("gpus")
    driver_cards = math.ceil(driver_gpus)
    if asked is None:
        gpus = driver_cards or (0 if driver_gpus else defaults.default_gpus)
        if nodes > 1 and gpus and gpus % nodes:
            raise BadRequest(
                f"hybrid.nodes = {nodes} does not divide entrypoint_num_gpus = {driver_gpus:g}; "
                "say with hybrid.gpus how many cards the whole gang has"
            )
        return gpus
    gpus = int(str(asked))
    if gpus < driver_cards:
        raise BadRequest(
            f"hybrid.gpus = {gpus} is less than entrypoint_num_gpus = {driver_gpus:g}: the "
            "driver's cards are part of the gang"
        )
    if gpus % nodes:
        raise BadRequest(f"hybrid.gpus = {gpus} cannot be split evenly over hybrid.nodes = {nodes}")
    if driver_cards > gpus // nodes:
        raise BadRequest(
            f"entrypoint_num_gpus = {driver_gpus:g} is more than the {gpus // nodes} cards that "
            f"each of the {nodes} nodes has"
        )
    return gpus


def _amount(field: str, value: float | None, most: float) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not math.isfinite(value) or not 0 <= value <= most:
        raise BadRequest(f"{field} = {value!r} must be a number from 0 to {most:g}")
    return float(value)


def environment_key(runtime_env: Mapping[str, object]) -> str:
    """What a warm lease must match: everything of the runtime_env that installs something.

    Code and variables differ from job to job and cost nothing to change.
    """
    cheap = ("working_dir", "py_modules", "env_vars", "excludes", "config")
    rest = {key: value for key, value in runtime_env.items() if key not in cheap and value}
    if not rest:
        return ""
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


# --------------------------------------------------------------------------- the body


def parse_body(body: object) -> Submission:
    """Check the JSON body of `POST /api/jobs/` as Ray does: names and types. Raises
    `TypeError` with Ray's words for a wrong type, `BadRequest` for the rest."""
    if not isinstance(body, dict):
        raise BadRequest(f"the body must be a JSON object, got {type(body).__name__}")
    fields = {key: value for key, value in body.items() if value is not None}
    known = (
        "entrypoint", "submission_id", "job_id", "runtime_env", "metadata",
        "entrypoint_num_cpus", "entrypoint_num_gpus", "entrypoint_memory",
        "entrypoint_resources", "entrypoint_label_selector",
    )  # fmt: skip
    for key in fields:
        if key not in known:
            raise TypeError(
                f"JobSubmitRequest.__init__() got an unexpected keyword argument '{key}'"
            )
    if "entrypoint" not in fields:
        raise TypeError(
            "JobSubmitRequest.__init__() missing 1 required positional argument: 'entrypoint'"
        )
    submission_id = fields.get("submission_id", fields.get("job_id"))
    _typed("entrypoint", fields["entrypoint"], str, "a string")
    _typed("submission_id", submission_id or "", str, "a string if provided")
    if submission_id is not None:
        _job_id(submission_id)
    return Submission(
        entrypoint=fields["entrypoint"],
        submission_id=submission_id,
        runtime_env=_mapping("runtime_env", fields.get("runtime_env", {}), object, ""),
        metadata=_mapping("metadata", fields.get("metadata", {}), str, "strings"),
        entrypoint_num_cpus=_number("entrypoint_num_cpus", fields),
        entrypoint_num_gpus=_number("entrypoint_num_gpus", fields),
        entrypoint_memory=_typed(
            "entrypoint_memory", fields.get("entrypoint_memory", 0), int, "an integer"
        )
        or None,
        entrypoint_resources=_mapping(
            "entrypoint_resources", fields.get("entrypoint_resources", {}), (int, float), "numbers"
        )
        or None,
        entrypoint_label_selector=_mapping(
            "entrypoint_label_selector", fields.get("entrypoint_label_selector", {}), str, "strings"
        )
        or None,
    )


def _job_id(text: str) -> None:
    if not text or len(text) > 200 or "/" in text or any(ord(c) < 32 for c in text):
        raise BadRequest(
            f"submission_id = {text[:60]!r} must have 1 to 200 characters and no '/' or control "
            "characters: it becomes part of addresses"
        )


def _typed(field: str, value: object, kind: type[T], words: str) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{field} must be {words}, got {type(value)}")
    return value


def _number(field: str, fields: Mapping[str, object]) -> float | None:
    value = fields.get(field)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{field} must be a number, got {type(value)}")
    return float(value)


def _mapping(field: str, value: object, kind: Any, words: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{field} must be a dict, got {type(value)}")
    for key, item in value.items():
        if not isinstance(key, str):
            raise TypeError(f"{field} keys must be strings, got {type(key)}")
        if not isinstance(item, kind) or (isinstance(item, bool) and words):
            raise TypeError(f"{field} values must be {words}, got {type(item)}")
    return value
