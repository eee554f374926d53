"""The client of one lease's Ray Jobs API (implements `hybrid.ports.RayCluster`)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from hybrid.ports import ClusterRefused, ClusterUnreachable, Endpoint, RayJob

CALL = aiohttp.ClientTimeout(total=20, sock_connect=5)
UPLOAD = aiohttp.ClientTimeout(total=900, sock_connect=5, sock_read=120)
STREAM = aiohttp.ClientTimeout(total=None, sock_connect=5)
CHUNK_BYTES = 1 << 20


class RayClusterClient:
    """One HTTP session to a lease's dashboard. Must be made inside a running event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._base = endpoint.url
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {endpoint.token}"}, timeout=CALL
        )

    async def version(self) -> Mapping[str, str]:
        found = await self._json("GET", "/api/version")
        return {str(key): str(value) for key, value in found.items()}

    async def put_package(self, name: str, path: str) -> None:
        where = f"/api/packages/gcs/{name}"
        try:
            await self._call("GET", where)
            return
        except ClusterRefused as refusal:
            if refusal.status != 404:
                raise
        file = Path(path)
        if not file.is_file():
            raise FileNotFoundError(2, "package is not in the store", name)
        await self._call("PUT", where, data=_chunks(file), timeout=UPLOAD)

    async def submit(self, body: Mapping[str, object]) -> None:
        try:
            await self._call("POST", "/api/jobs/", json_body=body)
        except ClusterRefused as refusal:
            if "already exists" not in str(refusal):
                raise

    async def job(self, submission_id: str) -> RayJob | None:
        try:
            found = await self._json("GET", f"/api/jobs/{submission_id}")
        except ClusterRefused as refusal:
            if refusal.status == 404:
                return None
            raise
        return RayJob(
            status=found["status"],
            message=found.get("message"),
            error_type=found.get("error_type"),
            driver_exit_code=found.get("driver_exit_code"),
            start_time_ms=found.get("start_time"),
            end_time_ms=found.get("end_time"),
            job_id=found.get("job_id"),
            driver_info=found.get("driver_info"),
            driver_node_id=found.get("driver_node_id"),
            driver_agent_http_address=found.get("driver_agent_http_address"),
        )

    async def stop(self, submission_id: str) -> bool:
        try:
            return bool((await self._json("POST", f"/api/jobs/{submission_id}/stop"))["stopped"])
        except ClusterRefused as refusal:
            if refusal.status == 404:
                return False
            raise

    async def tail(self, submission_id: str, skip_bytes: int) -> AsyncIterator[bytes]:
        """Ray always sends from the start: what we have already is dropped here."""
        where = f"{self._base}/api/jobs/{submission_id}/logs/tail"
        try:
            async with self._session.ws_connect(where, heartbeat=20, timeout=_ws_timeout()) as ws:
                async for message in ws:
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        continue
                    data = str(message.data).encode()
                    if skip_bytes:
                        dropped = min(skip_bytes, len(data))
                        data, skip_bytes = data[dropped:], skip_bytes - dropped
                    if data:
                        yield data
        except (aiohttp.ClientError, OSError) as error:
            raise ClusterUnreachable(f"{where}: {type(error).__name__}: {error}") from error

    async def logs(self, submission_id: str) -> bytes:
        found = await self._json("GET", f"/api/jobs/{submission_id}/logs")
        return str(found["logs"]).encode()

    async def unmet_demand(self) -> str | None:
        report = await self._load_report()
        totals = [_totals(usage) for usage in (report.get("usageByNode") or {}).values()]
        if not totals:
            return None
        for demand, _count in report.get("resourceDemand") or ():
            missing = _never_fits(demand, totals)
            if missing:
                return missing
        for group, _count in report.get("pgDemand") or ():
            missing = _group_never_fits(group, totals)
            if missing:
                return missing
        return None

    async def size(self) -> tuple[int, float]:
        found = await self._json("GET", "/api/v0/nodes?detail=true&limit=1000")
        nodes = (found.get("data") or {}).get("result", {}).get("result") or []
        alive = [node for node in nodes if node.get("state") == "ALIVE"]
        gpus = sum(float((n.get("resources_total") or {}).get("GPU", 0.0)) for n in alive)
        return len(alive), gpus

    async def close(self) -> None:
        await self._session.close()

    async def _load_report(self) -> Mapping[str, Any]:
        found = await self._json("GET", "/api/cluster_status")
        status = (found.get("data") or {}).get("clusterStatus") or {}
        report: Mapping[str, Any] = status.get("loadMetricsReport") or {}
        return report

    async def _json(self, method: str, path: str) -> Any:
        text = await self._call(method, path)
        try:
            return json.loads(text)
        except ValueError as error:
            raise ClusterUnreachable(f"{path} answered what is no JSON: {text[:200]!r}") from error

    async def _call(
        self,
        method: str,
        path: str,
        json_body: Mapping[str, object] | None = None,
        data: AsyncIterator[bytes] | None = None,
        timeout: aiohttp.ClientTimeout = CALL,
    ) -> str:
        where = self._base + path
        try:
            async with self._session.request(
                method, where, json=json_body, data=data, timeout=timeout
            ) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterUnreachable(f"{where}: {type(error).__name__}: {error}") from error
        if answer.status >= 400:
            raise ClusterRefused(answer.status, text)
        return text


def _ws_timeout() -> aiohttp.ClientWSTimeout:
    return aiohttp.ClientWSTimeout(ws_close=5.0)


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK_BYTES):
            yield chunk


def _totals(usage: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: float(total) for name, (_used, total) in usage.items()}


def _never_fits(demand: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> str | None:
    """Words for a bundle that no node could hold, even empty."""
    asked = {k: v for k, v in demand.items() if "_group_" not in k and not k.startswith("node:")}
    if any(all(node.get(k, 0.0) >= v for k, v in asked.items()) for node in nodes):
        return None
    wants = ", ".join(f"{v:g} {k}" for k, v in sorted(asked.items()))
    most = ", ".join(f"{max(node.get(k, 0.0) for node in nodes):g} {k}" for k in sorted(asked))
    return f"a task or actor asks for {wants}, each node of the lease has {most}"


def _group_never_fits(group: Any, nodes: Sequence[Mapping[str, float]]) -> str | None:
    """Words for a placement group that asks for more than the whole lease."""
    if not isinstance(group, Mapping):
        return None
    asked: dict[str, float] = {}
    for bundle, count in group.get("bundles") or ():
        for name, amount in bundle.items():
            asked[name] = asked.get(name, 0.0) + amount * count
    for name, amount in sorted(asked.items()):
        have = sum(node.get(name, 0.0) for node in nodes)
        if amount > have:
            return f"a placement group asks for {amount:g} {name}, the lease has {have:g}"
    return None
