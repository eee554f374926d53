"""Ray's Jobs REST API (Ray 2.60), so that its unmodified CLI and SDK work: same routes, fields,
status codes and plain-text errors. A job is held here until Hybrid has a place for it."""

from __future__ import annotations

import asyncio
import codecs
import json
import secrets
import string
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TypeVar

from sqlmodel import Session
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from hybrid.core.lifecycle import RAY_STATUS
from hybrid.gateway.auth import Caller
from hybrid.gateway.deps import GatewayDeps
from hybrid.gateway.requirements import (
    BadRequest,
    Submission,
    environment_key,
    parse_body,
    requirements_of,
)
from hybrid.gateway.submits import Submits
from hybrid.gateway.views import message_of
from hybrid.store import jobs as records
from hybrid.store.codec import dump_requirements
from hybrid.store.packages import PackageError, packages_of
from hybrid.store.tables import Job

#: The version of the Jobs API that Ray's client checks.
JOBS_API_VERSION = "4"
_ID_ALPHABET = sorted(set(string.ascii_letters + string.digits) - set("IloO0"))
T = TypeVar("T")


def plain(status: int, text: str) -> Response:
    """An error as Ray's dashboard sends it."""
    return Response(text, status_code=status, media_type="text/plain")


def answer(body: object) -> Response:
    return Response(json.dumps(body), media_type="application/json")


def new_submission_id() -> str:
    """As Ray makes them: `raysubmit_` and 16 characters that cannot be mistaken."""
    size = len(_ID_ALPHABET)
    return "raysubmit_" + "".join(_ID_ALPHABET[byte % size] for byte in secrets.token_bytes(16))


def details(job: Job, sentences: Mapping[str, str]) -> Mapping[str, object]:
    """Ray's `JobDetails`. While Hybrid holds the job, `message` says why and for how long."""
    return {
        "type": "SUBMISSION",
        "job_id": job.ray_job_id,
        "submission_id": job.id,
        "driver_info": job.driver_info,
        "status": RAY_STATUS[job.state],
        "entrypoint": job.entrypoint,
        "message": message_of(job, sentences),
        "error_type": job.error_type,
        "start_time": milliseconds(job.submitted_at),
        "end_time": milliseconds(job.ended_at),
        "metadata": job.user_metadata,
        "runtime_env": job.runtime_env,
        "driver_agent_http_address": job.driver_agent_http_address,
        "driver_node_id": job.driver_node_id,
        "driver_exit_code": job.driver_exit_code,
    }


def milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


class RayJobs:
    """The routes, over one set of dependencies."""

    def __init__(self, deps: GatewayDeps) -> None:
        self._deps = deps
        self._submits = Submits(deps.store)

    def routes(self) -> list[BaseRoute]:
        """Plain routes without FastAPI's machinery: these calls come by the thousand."""
        package = "/api/packages/{protocol}/{name}"
        job = "/api/jobs/{job_id}"
        return [
            Route("/api/jobs/", self.submit, methods=["POST"]),
            Route("/api/jobs/", self.list_jobs, methods=["GET"]),
            Route(job, self.get_job, methods=["GET"]),
            Route(job, self.delete_job, methods=["DELETE"]),
            Route(job + "/stop", self.stop_job, methods=["POST"]),
            Route(job + "/logs", self.logs, methods=["GET"]),
            WebSocketRoute(job + "/logs/tail", self.tail),
            Route(package, self.get_package, methods=["GET"]),
            Route(package, self.put_package, methods=["PUT"]),
            Route("/api/version", self.version, methods=["GET"]),
            Route("/api/ray/version", self.version, methods=["GET"]),
            Route("/api/authentication_mode", self.authentication_mode, methods=["GET"]),
        ]

    # ------------------------------------------------------------------ about us

    async def version(self, _request: Request) -> Response:
        return answer(
            {
                "version": JOBS_API_VERSION,
                "ray_version": self._deps.controller.ray_version,
                "ray_commit": self._deps.controller.ray_commit,
                "session_name": self._deps.session_name,
            }
        )

    async def authentication_mode(self, _request: Request) -> Response:
        required = self._deps.settings.auth_required
        return answer({"authentication_mode": "token" if required else "disabled"})

    # ------------------------------------------------------------------ packages

    async def get_package(self, request: Request) -> Response:
        protocol, name = request.path_params["protocol"], request.path_params["name"]
        if protocol != "gcs":
            return plain(500, f"Protocol {protocol}:// is not supported, only gcs://")
        try:
            if not self._deps.packages.has(name):
                return plain(404, f"Package gcs://{name} does not exist")
            self._deps.packages.touch(name)
        except PackageError as error:
            return plain(error.status, str(error))
        return Response()

    async def put_package(self, request: Request) -> Response:
        protocol, name = request.path_params["protocol"], request.path_params["name"]
        if protocol != "gcs":
            return plain(500, f"Protocol {protocol}:// is not supported, only gcs://")
        length = request.headers.get("content-length", "")
        try:
            await self._deps.packages.receive(
                name, request.stream(), int(length) if length.isdigit() else None
            )
        except PackageError as error:
            return plain(error.status, str(error))
        return Response()

    # ------------------------------------------------------------------ submit

    async def submit(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except ValueError as error:
            return plain(400, f"the body is no JSON: {error}")
        try:
            submission = parse_body(body)
            job = self._job(submission, _caller(request).user)
        except TypeError as error:
            return plain(400, f"TypeError: {error}")
        except (BadRequest, PackageError) as error:
            return plain(400, f"ValueError: {error}")
        try:
            await self._submits.add(job)
        except records.JobExists as error:
            return plain(500, f"ValueError: {error}")
        self._deps.controller.wake()
        return answer({"job_id": job.id, "submission_id": job.id})

    def _job(self, submission: Submission, user: str) -> records.NewJob:
        """The row of a request that can be taken. Raises what says why it cannot."""
        deps, now = self._deps, self._deps.clock.now()
        runtime_env = dict(submission.runtime_env)
        requirements = requirements_of(submission, deps.controller.job_defaults(), now)
        packages = packages_of(runtime_env)
        for name in packages:
            if not deps.packages.has(name):
                raise BadRequest(
                    f"package gcs://{name} is not here: upload it first (ray job submit does)"
                )
        never = deps.controller.why_never(requirements)
        if never is not None:
            raise BadRequest(never)
        return records.NewJob(
            id=submission.submission_id or new_submission_id(),
            user=user,
            project=requirements.project,
            entrypoint=submission.entrypoint,
            runtime_env=runtime_env,
            user_metadata=submission.metadata,
            entrypoint_num_cpus=submission.entrypoint_num_cpus,
            entrypoint_num_gpus=submission.entrypoint_num_gpus,
            entrypoint_memory=submission.entrypoint_memory,
            entrypoint_resources=submission.entrypoint_resources,
            entrypoint_label_selector=submission.entrypoint_label_selector,
            requirements=dump_requirements(requirements),
            environment=environment_key(runtime_env),
            packages=packages,
            priority=requirements.priority,
            submitted_at=now,
        )

    # ------------------------------------------------------------------ look

    async def list_jobs(self, _request: Request) -> Response:
        def work() -> str:
            with self._deps.store.read() as session:
                sentences = self._deps.controller.sentences()
                return json.dumps([details(job, sentences) for job in records.jobs_in(session)])

        return Response(await asyncio.to_thread(work), media_type="application/json")

    async def get_job(self, request: Request) -> Response:
        job_id: str = request.path_params["job_id"]
        job = await self._find(job_id)
        if job is None:
            return _unknown(job_id)
        return answer(details(job, self._deps.controller.sentences()))

    async def logs(self, request: Request) -> Response:
        job_id: str = request.path_params["job_id"]
        job = await self._find(job_id)
        if job is None:
            return _unknown(job_id)
        text = await asyncio.to_thread(self._deps.logs.read, job.id)
        return answer({"logs": text.decode(errors="replace")})

    async def tail(self, websocket: WebSocket) -> None:
        """The log from its start to the job's end. It is never closed before: Ray's CLI takes
        the end of the stream for the end of the job."""
        job_id: str = websocket.path_params["job_id"]
        job = await self._find(job_id)
        if job is None:
            await websocket.send_denial_response(_unknown(job_id))
            return
        await websocket.accept()
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        try:
            async for data in self._deps.logs.follow(job.id, lambda: self._is_over(job.id)):
                if text := decoder.decode(data):
                    await websocket.send_text(text)
            if rest := decoder.decode(b"", final=True):
                await websocket.send_text(rest)
            await websocket.close(1000)
        except WebSocketDisconnect:
            return

    async def _is_over(self, job_id: str) -> bool:
        job = await self._find(job_id)
        return job is None or job.state.terminal

    # ------------------------------------------------------------------ act

    async def stop_job(self, request: Request) -> Response:
        job_id: str = request.path_params["job_id"]
        job = await self._find(job_id)
        if job is None:
            return _unknown(job_id)
        if not _caller(request).may_touch(job.user):
            return _not_yours(job)
        now = self._deps.clock.now()

        def change(session: Session) -> bool:
            row = session.get_one(Job, job.id)
            return records.request_stop(session, row, "Job was intentionally stopped.", now)

        stopped = await self._write(change)
        self._deps.controller.wake(job.lease_id)
        self._deps.logs.wake(job.id)
        return answer({"stopped": stopped})

    async def delete_job(self, request: Request) -> Response:
        job_id: str = request.path_params["job_id"]
        job = await self._find(job_id)
        if job is None:
            return _unknown(job_id)
        if not _caller(request).may_touch(job.user):
            return _not_yours(job)
        try:
            await self._write(lambda s: records.delete_job(s, s.get_one(Job, job.id)))
        except records.JobNotTerminal as error:
            return plain(500, f"RuntimeError: {error}")
        await asyncio.to_thread(self._deps.logs.delete, job.id)
        return answer({"deleted": True})

    # ------------------------------------------------------------------ the store

    async def _find(self, job_id: str) -> Job | None:
        def work() -> Job | None:
            with self._deps.store.read() as session:
                return records.find_job(session, job_id)

        return await asyncio.to_thread(work)

    async def _write(self, change: Callable[[Session], T]) -> T:
        def work() -> T:
            with self._deps.store.write() as session:
                return change(session)

        return await asyncio.to_thread(work)


def _caller(request: Request) -> Caller:
    caller: Caller = request.scope["caller"]
    return caller


def _unknown(job_id: str) -> Response:
    return plain(404, f"Job {job_id} does not exist")


def _not_yours(job: Job) -> Response:
    # Not 403: Ray's client takes that for a wrong token and says so at length.
    return plain(400, f"PermissionError: job {job.id} belongs to {job.user}; operators may")
