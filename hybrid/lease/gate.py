"""The join gate: a lease is ready when its cluster is what the job was promised."""

from __future__ import annotations

from collections.abc import Callable

from hybrid.core.model import Gang
from hybrid.ports import ClusterRefused, ClusterUnreachable, Endpoint, Progress, RayCluster


async def gate(
    endpoint: Endpoint,
    gang: Gang,
    ray_version: str,
    connect: Callable[[Endpoint], RayCluster],
) -> Progress:
    """Look at a cluster whose dashboard should be up: versions, nodes, cards."""
    cluster = connect(endpoint)
    try:
        version = (await cluster.version()).get("ray_version", "unknown")
        if version != ray_version:
            return Progress(
                "",
                failed=f"its Ray is {version}, the job needs {ray_version}: install the same "
                "version there",
            )
        nodes, gpus = await cluster.size()
    except (ClusterUnreachable, ClusterRefused) as error:
        return Progress(f"its dashboard does not answer yet ({error})")
    finally:
        await cluster.close()
    if nodes < gang.nodes:
        return Progress(f"{nodes} of {gang.nodes} nodes have joined the lease's Ray cluster")
    if gpus < gang.gpus:
        return Progress("", failed=f"it has {gpus:g} GPUs, the gang needs {gang.gpus}")
    return Progress("ready", endpoint=endpoint)
