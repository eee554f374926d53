"""KubeRay's RayJobs, as ``kubectl get rayjobs --all-namespaces -o json`` prints them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

from hybrid.traces.record import DROPPED, Ended, RowError, TraceError
from hybrid.traces.values import Row, moment

COMMAND = "kubectl get rayjobs --all-namespaces -o json"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
#: Extended resources of a container that count as cards.
_CARD_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")

_ENDED = {
    "SUCCEEDED": Ended.COMPLETED,
    "FAILED": Ended.FAILED,
    "STOPPED": Ended.CANCELLED,
}


def is_json(first: str) -> bool:
    return first.lstrip().startswith("{")


def read_rows(path: Path, lines: Iterable[str]) -> Iterator[Row]:
    """Each RayJob as a row of our own schema; what never ran has a `DROPPED` cell."""
    try:
        found = json.loads("".join(lines))
    except ValueError as error:
        raise TraceError(f"{path} begins like JSON and is none: {error}") from None
    items = found.get("items") if isinstance(found, dict) else None
    if not isinstance(items, list):
        raise TraceError(f"{path} holds no list of RayJobs ({COMMAND})")
    for item in items:
        yield _row(item)


def _row(item: Any) -> Row:
    try:
        return _cells(item)
    except RowError as error:
        return {DROPPED: str(error)}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {DROPPED: "the RayJob lacks a field"}


def _cells(item: Mapping[str, Any]) -> Row:
    if item.get("kind") != "RayJob":
        raise RowError(f"a {item.get('kind')}, not a RayJob")
    meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    start, end = status.get("startTime"), status.get("endTime")
    if not start:
        raise RowError("the job never ran")
    if not end:
        raise RowError("the job still runs")
    started, ended = moment(start, UTC)[0], moment(end, UTC)[0]
    if ended < started:
        raise RowError("end before start")
    nodes, gpus = _size(spec["rayClusterSpec"])
    labels = meta.get("labels") or {}
    limit = spec.get("activeDeadlineSeconds")
    return {
        "id": f"{meta['namespace']}/{meta['name']}/{meta['uid']}",
        "submit": str(moment(meta["creationTimestamp"], UTC)[0]),
        "runtime_seconds": str(ended - started),
        "gpus": str(gpus),
        "user": meta["namespace"],
        "partition": labels.get(QUEUE_LABEL, ""),
        "name": spec.get("entrypoint", ""),
        "start": str(started),
        "end": str(ended),
        "nodes": str(nodes),
        "limit_seconds": "" if limit is None else str(limit),
        "ended": _ENDED.get(status.get("jobStatus", ""), Ended.UNKNOWN),
    }


def _size(cluster: Mapping[str, Any]) -> tuple[int, int]:
    """Machines with cards (at least 1) and cards of the whole cluster."""
    workers = cluster.get("workerGroupSpecs") or ()
    groups = [
        (1, cluster["headGroupSpec"]),
        *((group.get("replicas", 1) * group.get("numOfHosts", 1), group) for group in workers),
    ]
    nodes = gpus = 0
    for count, group in groups:
        each = sum(map(_cards, group["template"]["spec"]["containers"]))
        gpus += count * each
        nodes += count if each else 0
    return max(1, nodes), gpus


def _cards(container: Mapping[str, Any]) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    return sum(int(limits.get(name, 0)) for name in _CARD_RESOURCES)
