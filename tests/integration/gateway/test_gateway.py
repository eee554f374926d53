"""The gateway over HTTP: Ray's client, tokens, bad input, its own API."""

from __future__ import annotations

import asyncio
import http.client
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
import requests
from ray.job_submission import JobStatus, JobSubmissionClient

from hybrid.core.lifecycle import JobState
from hybrid.store import jobs
from hybrid.store.tables import Job
from tests.integration.gateway.conftest import Gateway

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def move(gateway: Gateway, job_id: str, *states: JobState) -> None:
    for state in states:
        with gateway.deps.store.write() as session:
            jobs.move_job(session, session.get_one(Job, job_id), state, "test", NOW)
    gateway.deps.logs.wake(job_id)


def to_the_end(gateway: Gateway, job_id: str) -> None:
    move(gateway, job_id, JobState.STARTING, JobState.RUNNING, JobState.SUCCEEDED)


# --------------------------------------------------------------------------- Ray's client


def test_rays_sdk_submits_looks_stops_and_deletes(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    client = JobSubmissionClient(gateway.url)
    job_id = client.submit_job(
        entrypoint="python train.py",
        runtime_env={"working_dir": str(tmp_path / "code"), "env_vars": {"A": "1"}},
        metadata={"k": "v"},
        entrypoint_num_gpus=1,
    )
    info = client.get_job_info(job_id)
    assert (info.status, info.metadata) == (JobStatus.PENDING, {"k": "v"})
    package = info.runtime_env["working_dir"].removeprefix("gcs://")  # type: ignore[index]
    assert gateway.deps.packages.has(package)
    assert [j.submission_id for j in client.list_jobs()] == [job_id]
    with pytest.raises(RuntimeError, match="non-terminal state"):
        client.delete_job(job_id)
    assert client.stop_job(job_id)
    assert client.get_job_status(job_id) == JobStatus.STOPPED
    assert client.get_job_info(job_id).message == "Job was intentionally stopped."
    assert not client.stop_job(job_id)
    assert client.delete_job(job_id)
    with pytest.raises(RuntimeError, match=f"Job {job_id} does not exist"):
        client.get_job_info(job_id)


def test_a_reused_id_is_refused_and_the_first_job_stays(gateway: Gateway) -> None:
    client = JobSubmissionClient(gateway.url)
    client.submit_job(entrypoint="one", submission_id="same")
    with pytest.raises(RuntimeError, match="same already exists"):
        client.submit_job(entrypoint="two", submission_id="same")
    assert client.get_job_info("same").entrypoint == "one"


def test_a_job_is_also_found_by_the_id_of_its_driver(gateway: Gateway) -> None:
    JobSubmissionClient(gateway.url).submit_job(entrypoint="x", submission_id="j")
    with gateway.deps.store.write() as session:
        session.get_one(Job, "j").ray_job_id = "02000000"
    assert requests.get(f"{gateway.url}/api/jobs/02000000").json()["submission_id"] == "j"


def test_the_tail_gives_every_byte_once_and_ends_only_with_the_job(gateway: Gateway) -> None:
    client = JobSubmissionClient(gateway.url)
    job_id = client.submit_job(entrypoint="x")
    text = "".join(f"line {i} äöü😀\n" for i in range(2000))
    data = text.encode()

    def driver() -> None:
        move(gateway, job_id, JobState.STARTING, JobState.RUNNING)
        for start in range(0, len(data), 777):  # cuts through characters
            gateway.deps.logs.append_driver(job_id, 1, data[start : start + 777])
        time.sleep(0.3)
        assert seen_end == []
        move(gateway, job_id, JobState.SUCCEEDED)

    seen_end: list[bool] = []

    async def follow() -> str:
        parts = [part async for part in client.tail_job_logs(job_id)]
        seen_end.append(True)
        return "".join(parts)

    thread = threading.Thread(target=driver)
    thread.start()
    assert asyncio.run(follow()) == text
    thread.join()
    assert client.get_job_status(job_id) == JobStatus.SUCCEEDED
    assert client.get_job_logs(job_id) == text


def test_a_follower_that_goes_away_does_no_harm(gateway: Gateway) -> None:
    client = JobSubmissionClient(gateway.url)
    job_id = client.submit_job(entrypoint="x")

    async def leave_early() -> None:
        url = f"{gateway.url}/api/jobs/{job_id}/logs/tail"
        async with aiohttp.ClientSession() as session, session.ws_connect(url):
            gateway.deps.logs.append_driver(job_id, 1, b"hello\n")

    asyncio.run(leave_early())
    to_the_end(gateway, job_id)
    assert client.get_job_logs(job_id) == "hello\n"


# --------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{no json", "no JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "entrypoint"),
        ('{"entrypoint": "x", "metadata": {"a": 1}}', "metadata values must be strings"),
        ('{"entrypoint": "x", "metadata": {"hybrid.nodez": "1"}}', "did you mean hybrid.nodes"),
        ('{"entrypoint": "x", "entrypoint_num_gpus": 64}', "the largest is 8"),
        (
            '{"entrypoint": "x", "runtime_env": {"working_dir": "gcs://_ray_pkg_1.zip"}}',
            "upload it first",
        ),
    ],
)
def test_what_cannot_run_is_refused_at_the_door(gateway: Gateway, body: str, says: str) -> None:
    answer = requests.post(f"{gateway.url}/api/jobs/", data=body)
    assert answer.status_code == 400
    assert says in answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    assert requests.get(f"{gateway.url}/api/jobs/").json() == []


@pytest.mark.parametrize("path", ["", "/logs", "/logs/tail"])
def test_an_unknown_job_is_404_everywhere(gateway: Gateway, path: str) -> None:
    url = f"{gateway.url}/api/jobs/nobody{path}"
    if path == "/logs/tail":

        async def connect() -> None:
            async with aiohttp.ClientSession() as session, session.ws_connect(url):
                pass

        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            asyncio.run(connect())
        assert refused.value.status == 404
    else:
        answer = requests.get(url)
        assert (answer.status_code, answer.text) == (404, "Job nobody does not exist")


def test_a_locked_database_is_503_and_nothing_is_lost(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The engine reads the time-out when a connection is made: shorten it for new ones.
    with gateway.deps.store.engine.connect() as connection:
        raw = connection.connection.dbapi_connection
        assert raw is not None
        raw.execute("PRAGMA busy_timeout = 100")
    other = sqlite3.connect(tmp_path / "hybrid.sqlite")
    other.execute("BEGIN IMMEDIATE")
    try:
        answer = requests.post(f"{gateway.url}/api/jobs/", json={"entrypoint": "x"})
    finally:
        other.rollback()
        other.close()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert requests.post(f"{gateway.url}/api/jobs/", json={"entrypoint": "x"}).status_code == 200


def test_an_upload_through_http_is_streamed_checked_and_limited(gateway: Gateway) -> None:
    url = f"{gateway.url}/api/packages/gcs/_ray_pkg_1.zip"
    assert requests.get(url).status_code == 404
    assert requests.put(url, data=b"no zip").status_code == 400
    announced = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    announced.putrequest("PUT", urlsplit(url).path)
    announced.putheader("Content-Length", str(2**31))
    announced.endheaders()
    assert announced.getresponse().status == 413  # before a byte of it was sent
    announced.close()
    assert requests.put(f"{gateway.url}/api/packages/s3/x.zip", data=b"").status_code == 500


# --------------------------------------------------------------------------- tokens


def test_without_a_token_401_with_a_wrong_one_403(guarded: Gateway) -> None:
    for path in ("/api/version", "/api/jobs/", "/api/hybrid/v1/jobs"):
        assert requests.get(guarded.url + path).status_code == 401
        wrong = {"Authorization": "Bearer wrong"}
        assert requests.get(guarded.url + path, headers=wrong).status_code == 403
    mode = requests.get(f"{guarded.url}/api/authentication_mode")
    assert mode.json() == {"authentication_mode": "token"}


def test_a_token_in_any_of_rays_places_is_taken(
    guarded: Gateway, token_for: Callable[..., str]
) -> None:
    secret = token_for("ada")
    for extra in (
        {"headers": {"Authorization": f"Bearer {secret}"}},
        {"headers": {"X-Ray-Authorization": f"Bearer {secret}"}},
        {"cookies": {"ray-authentication-token": secret}},
    ):
        assert requests.get(f"{guarded.url}/api/version", **extra).status_code == 200  # type: ignore[arg-type]


def test_a_user_acts_on_own_jobs_an_operator_on_all(
    guarded: Gateway, token_for: Callable[..., str]
) -> None:
    def client(user: str, role: str = "user") -> JobSubmissionClient:
        headers = {"Authorization": f"Bearer {token_for(user, role)}"}
        return JobSubmissionClient(guarded.url, headers=headers)

    ada, bob, eve = client("ada"), client("bob"), client("eve", "operator")
    job_id = ada.submit_job(entrypoint="x", metadata={"user": "bob", "job_owner": "bob"})
    with pytest.raises(RuntimeError, match="belongs to ada"):
        bob.stop_job(job_id)
    assert bob.get_job_status(job_id) == JobStatus.PENDING
    assert eve.stop_job(job_id)
    with pytest.raises(RuntimeError, match="belongs to ada"):
        bob.delete_job(job_id)
    assert ada.delete_job(job_id)


def test_tokens_are_made_and_revoked_by_admins_only(
    guarded: Gateway, token_for: Callable[..., str]
) -> None:
    url = f"{guarded.url}/api/hybrid/v1/tokens"
    user = {"Authorization": f"Bearer {token_for('ada')}"}
    admin = {"Authorization": f"Bearer {token_for('root', 'admin')}"}
    refused = requests.get(url, headers=user)
    assert refused.status_code == 403
    assert "needs the role admin" in refused.json()["error"]
    made = requests.post(url, headers=admin, json={"user": "bob"}).json()
    bob = {"Authorization": f"Bearer {made['secret']}"}
    assert requests.get(f"{guarded.url}/api/version", headers=bob).status_code == 200
    assert requests.delete(f"{url}/{made['id']}", headers=admin).json() == {"revoked": True}
    assert requests.get(f"{guarded.url}/api/version", headers=bob).status_code == 403
    assert made["secret"] not in requests.get(url, headers=admin).text


def test_a_page_of_another_site_cannot_act(gateway: Gateway) -> None:
    """CVE-2026-27482: a browser was made to call the job API of its reader's network."""
    body = {"entrypoint": "x"}
    url = f"{gateway.url}/api/jobs/"
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert requests.post(url, json=body, headers=headers).status_code == 405
    assert requests.get(url).json() == []


# --------------------------------------------------------------------------- Hybrid's own API


def test_the_own_api_shows_jobs_events_and_errors_with_hints(gateway: Gateway) -> None:
    base = f"{gateway.url}/api/hybrid/v1"
    job_id = JobSubmissionClient(gateway.url).submit_job(entrypoint="x")
    assert [j["id"] for j in requests.get(f"{base}/jobs?state=queued").json()] == [job_id]
    assert requests.get(f"{base}/jobs?state=running").json() == []
    wrong = requests.get(f"{base}/jobs?state=happy")
    assert (wrong.status_code, "none of" in wrong.json()["error"]) == (400, True)
    missing = requests.get(f"{base}/jobs/nobody")
    assert missing.status_code == 404
    assert missing.json()["hint"] == "hybrid job ls shows all"
    events = requests.get(f"{base}/events?job={job_id}").json()
    assert [(e["entity"], e["to_state"]) for e in events] == [("job", "queued")]
    assert requests.post(f"{base}/jobs/{job_id}/stop").json()["state"] == "stopped"
    assert requests.get(f"{gateway.url}/openapi.json").json()["info"]["title"] == "Hybrid"


def test_the_event_stream_goes_on_after_the_last_id(gateway: Gateway) -> None:
    url = f"{gateway.url}/api/hybrid/v1/events/stream"
    client = JobSubmissionClient(gateway.url)
    for number in range(3):
        client.submit_job(entrypoint="x", submission_id=f"j{number}")

    def first(count: int, headers: dict[str, str]) -> list[str]:
        seen: list[str] = []
        with requests.get(url, headers=headers, stream=True, timeout=10) as answer:
            for line in answer.iter_lines():
                if line.startswith(b"data: "):
                    seen.append(json.loads(line[6:])["entity_id"])
                    if len(seen) == count:
                        return seen
        return seen

    assert first(2, {}) == ["j0", "j1"]
    assert first(1, {"Last-Event-ID": "2"}) == ["j2"]


def test_months_groupings_and_policies_that_are_none_are_refused(gateway: Gateway) -> None:
    base = f"{gateway.url}/api/hybrid/v1"
    assert "not YYYY-MM" in requests.get(f"{base}/report/cost?month=2026-13").json()["error"]
    assert "none of" in requests.get(f"{base}/report/cost?by=colour").json()["error"]
    answer = requests.put(f"{base}/policy", json={"name": "x", "text": "wrong"})
    assert (answer.status_code, answer.json()["code"]) == (400, "HB-214")
    assert requests.post(f"{base}/pool/n9/cordon", json={}).status_code == 404
    assert requests.post(f"{base}/pool/n1/cordon", json={"reason": "fan"}).status_code == 200


def test_a_card_is_quarantined_with_a_reason_and_healed(gateway: Gateway) -> None:
    from hybrid.store.marks import card_marks

    base = f"{gateway.url}/api/hybrid/v1/pool/cards"
    assert requests.post(f"{base}/GPU-9/quarantine", json={}).status_code == 404
    assert requests.post(f"{base}/GPU-1/heal").status_code == 404
    body = {"reason": "ECC"}
    assert requests.post(f"{base}/GPU-1/quarantine", json=body).status_code == 200
    with gateway.deps.store.read() as session:
        assert card_marks(session)["GPU-1"].reason == "ECC (by local)"
    assert requests.post(f"{base}/GPU-1/heal").status_code == 200


def test_the_ray_cli_sends_its_token(guarded: Gateway, token_for: Callable[..., str]) -> None:
    import os
    import subprocess

    from tests.installation import BIN

    def ray(**extra: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        return subprocess.run(
            [str(BIN / "ray"), "job", "submit", "--no-wait", "--", "true"],
            env={**clean, "RAY_API_SERVER_ADDRESS": guarded.url, **extra},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert ray().returncode != 0
    assert ray(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="wrong").returncode != 0
    done = ray(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token_for("ada"))
    assert done.returncode == 0, done.stderr
    with guarded.deps.store.read() as session:
        assert [job.user for job in jobs.jobs_in(session)] == ["ada"]
