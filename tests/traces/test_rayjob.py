"""RayJobs of a Kubernetes cluster as a history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybrid.traces.read import read_trace
from hybrid.traces.record import Ended, TraceError


def group(gpus: int, **more: Any) -> dict[str, Any]:
    limits = {"cpu": "8", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    container = {"name": "ray", "resources": {"limits": limits}}
    return {"template": {"spec": {"containers": [container]}}, **more}


def ray_job(name: str = "train", **status: str) -> dict[str, Any]:
    return {
        "kind": "RayJob",
        "metadata": {
            "name": name,
            "namespace": "vision",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-03-01T10:00:00Z",
            "labels": {"kueue.x-k8s.io/queue-name": "gpu-queue"},
        },
        "spec": {
            "entrypoint": "python train.py",
            "activeDeadlineSeconds": 7200,
            "rayClusterSpec": {
                "headGroupSpec": group(0),
                "workerGroupSpecs": [group(4, replicas=2), group(0, replicas=3)],
            },
        },
        "status": {
            "jobStatus": "SUCCEEDED",
            "startTime": "2026-03-01T10:10:00Z",
            "endTime": "2026-03-01T11:10:00Z",
            **status,
        },
    }


def write(path: Path, *items: Any) -> Path:
    path.write_text(json.dumps({"kind": "List", "items": list(items)}, indent=2))
    return path


def test_a_rayjob_is_a_job(tmp_path: Path) -> None:
    jobs, report = read_trace(write(tmp_path / "rayjobs.json", ray_job()))
    assert report.format == "rayjob"
    job = jobs[0]
    assert job.id == "vision/train/uid-train"
    assert (job.gpus, job.nodes, job.runtime_seconds) == (8, 2, 3600.0)
    assert job.start is not None
    assert job.start - job.submit == 600
    assert (job.user, job.partition, job.name) == ("vision", "gpu-queue", "python train.py")
    assert (job.limit_seconds, job.ended) == (7200.0, Ended.COMPLETED)


def test_what_cannot_be_used_is_counted(tmp_path: Path) -> None:
    broken = ray_job("broken")
    del broken["spec"]["rayClusterSpec"]
    items = [
        ray_job("pending", startTime=""),
        ray_job("running", endTime=""),
        ray_job("back", endTime="2026-03-01T09:00:00Z"),
        ray_job("none", endTime="2026-03-01T10:10:00Z"),
        broken,
        {"kind": "Pod"},
        "text",
        ray_job("good"),
        ray_job("good"),
    ]
    jobs, report = read_trace(write(tmp_path / "x.json", *items))
    assert [job.name for job in jobs] == ["python train.py"]
    assert report.dropped == {
        "the job never ran": 1,
        "the job still runs": 1,
        "end before start": 1,
        "runtime is not above zero": 1,
        "the RayJob lacks a field": 2,
        "a Pod, not a RayJob": 1,
        "duplicate id": 1,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{not json", "begins like JSON and is none"),
        ('{"kind": "Pod"}', "holds no list of RayJobs"),
    ],
)
def test_other_json_is_refused_in_words(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(path)
