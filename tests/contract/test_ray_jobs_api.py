"""The same calls against a real Ray dashboard and against Hybrid: equal but for ids and times.

One real head and one gateway serve the whole module. What Hybrid means to do differently is in
`DIFFERENT`, with the reason, and nowhere else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests
from ray.job_submission import JobSubmissionClient

from hybrid.lease.guard import PORT_FLAGS, claim_ports
from tests.installation import BIN, Hybrid

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

#: (call, what Hybrid answers) where it is meant to differ from Ray.
DIFFERENT = {
    "submit: no json": (400, "Ray answers 500 to a body that is no JSON; it is the caller's fault"),
    "package: name with ..": (400, "Ray stores what it is given under any name"),
    "package: absent at submit": (400, "Ray takes the job and fails it later"),
}


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    """The address of a real Ray dashboard."""
    base, lock = claim_ports()
    scratch = tempfile.mkdtemp(prefix="hyc-", dir="/tmp")
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--disable-usage-stats", f"--temp-dir={scratch}", "--node-ip-address=127.0.0.3"]
    command += [f"--port={base}", "--dashboard-host=127.0.0.3", f"--dashboard-port={base + 1}"]
    command += [f"--ray-client-server-port={base + 8}", "--num-cpus=2"]
    command += [f"--{name}={base + 2 + i}" for i, name in enumerate(PORT_FLAGS)]
    command += [f"--min-worker-port={base + 20}", f"--max-worker-port={base + 199}"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    env |= {"DASHBOARD_METRIC_PORT": str(base + 9), "AUTOSCALER_METRIC_PORT": str(base + 10)}
    env |= {"PATH": f"{BIN}:{env['PATH']}", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, pass_fds=(lock.fileno(),),
    )  # fmt: skip
    lock.close()
    url = f"http://127.0.0.3:{base + 1}"
    deadline = time.monotonic() + 60
    while True:
        try:
            assert requests.get(f"{url}/api/version", timeout=5).status_code == 200
            break
        except requests.ConnectionError:
            assert time.monotonic() < deadline, "the real Ray head did not come up"
            time.sleep(0.2)
    yield url
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    for member in family:
        member.kill()
    psutil.wait_procs(family, timeout=10)
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(scope="module")
def ours(make_hybrid: object) -> Hybrid:
    return make_hybrid(fake="T4:1")  # type: ignore[operator, no-any-return]


@pytest.fixture
def both(real: str, ours: Hybrid) -> tuple[str, str]:
    return real, ours.url


def compare(both: tuple[str, str], method: str, path: str, **how: object) -> tuple[int, object]:
    """Status, content type and the shape of the body are the same; the common answer."""
    answers = [requests.request(method, url + path, timeout=30, **how) for url in both]  # type: ignore[arg-type]
    shapes = [
        (a.status_code, (a.headers.get("content-type") or "").split(";")[0], _shape(a))
        for a in answers
    ]
    assert shapes[0] == shapes[1], f"{method} {path}: Ray {shapes[0]}, Hybrid {shapes[1]}"
    return answers[1].status_code, shapes[1][2]


def _shape(answer: requests.Response) -> object:
    """JSON: the fields with the types of their values. Text: the last line, ids normalised."""
    try:
        return _types(answer.json())
    except ValueError:
        lines = [line for line in answer.text.strip().splitlines() if line.strip()]
        return _normal(lines[-1]) if lines else ""


def _types(value: object) -> object:
    if isinstance(value, dict):
        return {key: _types(item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [_types(item) for item in value[:1]]
    return type(value).__name__


def _normal(text: str) -> str:
    return re.sub(r"raysubmit_\w+|_ray_pkg_\w+", "ID", text)


# --------------------------------------------------------------------------- calls


def test_who_are_you(both: tuple[str, str]) -> None:
    compare(both, "GET", "/api/version")
    compare(both, "GET", "/api/ray/version")
    compare(both, "GET", "/api/authentication_mode")
    versions = [requests.get(f"{url}/api/version").json() for url in both]
    for field in ("version", "ray_version", "ray_commit"):
        assert versions[0][field] == versions[1][field]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/jobs/nobody"),
        ("GET", "/api/jobs/nobody/logs"),
        ("POST", "/api/jobs/nobody/stop"),
        ("DELETE", "/api/jobs/nobody"),
        ("GET", "/api/packages/gcs/_ray_pkg_absent.zip"),
    ],
)
def test_what_is_not_there(both: tuple[str, str], method: str, path: str) -> None:
    assert compare(both, method, path)[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"entrypoint": 1},
        {"entrypoint": "true", "surprise": 1},
        {"entrypoint": "true", "metadata": {"a": 1}},
        {"entrypoint": "true", "runtime_env": "x"},
        {"entrypoint": "true", "entrypoint_num_gpus": "1"},
        {"entrypoint": "true", "entrypoint_resources": {"a": "b"}},
        {"entrypoint": "true", "entrypoint_memory": 1.5},
    ],
)
def test_bad_submits_are_refused_alike(both: tuple[str, str], body: dict[str, object]) -> None:
    answers = [requests.post(f"{url}/api/jobs/", json=body, timeout=30) for url in both]
    assert [a.status_code for a in answers] == [400, 400], [a.text for a in answers]
    words = [_normal(a.text.strip().splitlines()[-1]) for a in answers]
    assert words[0] == words[1]


def test_where_hybrid_means_to_differ(both: tuple[str, str]) -> None:
    posts = [requests.post(f"{url}/api/jobs/", data="{no json", timeout=30) for url in both]
    assert posts[1].status_code == DIFFERENT["submit: no json"][0]
    assert posts[0].status_code in (400, 500)
    put = requests.put(f"{both[1]}/api/packages/gcs/..zip", data=b"", timeout=30)
    assert put.status_code == DIFFERENT["package: name with .."][0]
    body = {"entrypoint": "true", "runtime_env": {"working_dir": "gcs://_ray_pkg_absent.zip"}}
    absent = requests.post(f"{both[1]}/api/jobs/", json=body, timeout=30)
    assert absent.status_code == DIFFERENT["package: absent at submit"][0]


def test_a_job_from_submit_to_delete(both: tuple[str, str]) -> None:
    body = {
        "entrypoint": "echo hello; exit 3",
        "submission_id": "contract",
        "metadata": {"a": "b"},
        "runtime_env": {"env_vars": {"A": "1"}},
    }
    assert compare(both, "POST", "/api/jobs/", json=body)[0] == 200
    again = [requests.post(f"{url}/api/jobs/", json=body, timeout=30) for url in both]
    assert again[0].status_code == again[1].status_code
    assert all("contract already exists" in a.text for a in again)
    early = [requests.delete(f"{url}/api/jobs/contract", timeout=30) for url in both]
    assert [a.status_code for a in early] == [500, 500]
    assert all("non-terminal state" in a.text for a in early)
    for url in both:
        client = JobSubmissionClient(url)
        deadline = time.monotonic() + 90
        while not client.get_job_status("contract").is_terminal():
            assert time.monotonic() < deadline
            time.sleep(0.3)
    status, details = compare(both, "GET", "/api/jobs/contract")
    assert status == 200
    assert isinstance(details, dict)
    found = [requests.get(f"{url}/api/jobs/contract", timeout=30).json() for url in both]
    for field in ("type", "submission_id", "status", "entrypoint", "metadata", "runtime_env",
                  "error_type", "driver_exit_code"):  # fmt: skip
        assert found[0][field] == found[1][field], field
    assert "exit code 3" in found[1]["message"]
    assert compare(both, "GET", "/api/jobs/contract/logs")[0] == 200
    assert compare(both, "GET", "/api/jobs/")[0] == 200
    assert compare(both, "POST", "/api/jobs/contract/stop")[0] == 200
    stops = [requests.post(f"{u}/api/jobs/contract/stop", timeout=30).json() for u in both]
    assert stops == [{"stopped": False}] * 2
    assert compare(both, "DELETE", "/api/jobs/contract")[0] == 200
    assert compare(both, "GET", "/api/jobs/contract")[0] == 404


def test_the_cli_says_the_same(real: str, ours: Hybrid, tmp_path: Path) -> None:
    """`ray job submit` with every flag, status, logs, list, stop, delete: exit codes and words."""
    (tmp_path / "main.py").write_text("import os\nprint('A is', os.environ['A'])\n")
    env = json.dumps({"env_vars": {"A": "1"}})
    flags = ["--working-dir", str(tmp_path), "--runtime-env-json", env, "--submission-id", "cli",
             "--metadata-json", '{"k": "v"}', "--entrypoint-num-cpus", "1"]  # fmt: skip
    for command in (
        ["submit", *flags, "--", "python", "main.py"],
        ["status", "cli"],
        ["logs", "cli"],
        ["list"],
        ["stop", "cli"],
        ["delete", "cli"],
        ["status", "cli"],
        ["submit", "--no-wait", "--submission-id", "cli2", "--", "sleep", "60"],
        ["stop", "cli2"],
        ["submit", "--metadata-json", '{"k": 1}', "--", "true"],
    ):
        results = [
            ours.run(
                "ray", "job", command[0], "--address", url, *command[1:], check=False,
                RAY_API_SERVER_ADDRESS="", RAY_ADDRESS="",
            )
            for url in (real, ours.url)
        ]  # fmt: skip
        codes = [r.returncode for r in results]
        assert codes[0] == codes[1], f"{command}: {[r.stdout + r.stderr for r in results]}"
        if command[0] in ("submit", "logs") and "cli" in command:
            assert all("A is 1" in r.stdout for r in results)
        if command[:2] == ["status", "cli"] and codes == [0, 0]:
            assert all("Job 'cli' succeeded" in r.stdout for r in results)


def test_the_address_may_come_from_each_of_rays_variables(ours: Hybrid) -> None:
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        env = {"RAY_API_SERVER_ADDRESS": "", "RAY_ADDRESS": "", name: ours.url}
        assert ours.run("ray", "job", "list", **env).returncode == 0
