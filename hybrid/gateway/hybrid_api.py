"""Hybrid's own API under `/api/hybrid/v1` (OpenAPI at `/docs`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from functools import partial
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from sqlmodel import Session, col, select

from hybrid import api
from hybrid.core.lifecycle import JobState, LeaseState
from hybrid.finance.report import cost_report, month_window
from hybrid.gateway.auth import AuthMiddleware, Caller
from hybrid.gateway.deps import GatewayDeps
from hybrid.gateway.views import Known, charges_out, job_detail, job_out, lease_out
from hybrid.policy.schema import PolicyError
from hybrid.store import jobs as records
from hybrid.store import journal, ledger, marks
from hybrid.store import tokens as token_records
from hybrid.store.jobs import request_stop
from hybrid.store.leases import OPEN, get_lease, leases_in, move_lease
from hybrid.store.tables import CardMark, Job, Lease, NodeMark

T = TypeVar("T")
EVENT_POLL_SECONDS = 0.5


class ApiError(Exception):
    """A refusal of the Hybrid API: becomes `api.ErrorOut` with this status."""

    def __init__(self, status: int, error: str, hint: str = "", code: str = "") -> None:
        super().__init__(error)
        self.status, self.body = status, api.ErrorOut(error=error, hint=hint, code=code)


async def api_error(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, ApiError):
        raise error
    return JSONResponse(error.body.model_dump(), status_code=error.status)


def needs(role: str) -> Callable[[Request], Caller]:
    """A dependency: the caller, who must have at least this role."""

    def check(request: Request) -> Caller:
        caller: Caller = request.scope["caller"]
        if not caller.may(role):
            raise ApiError(
                403,
                f"this needs the role {role}; the token of {caller.user} has {caller.role}",
                "ask an admin: hybrid token create --role " + role,
                "HB-403",
            )
        return caller

    return check


AnyUser = Annotated[Caller, Depends(needs("user"))]
Operator = Annotated[Caller, Depends(needs("operator"))]
Admin = Annotated[Caller, Depends(needs("admin"))]


def router(deps: GatewayDeps, door: AuthMiddleware) -> APIRouter:
    """All routes. A revoked token must leave the cache of `door`."""
    routes = APIRouter(prefix=api.PREFIX)
    store, controller, clock = deps.store, deps.controller, deps.clock

    def reading(query: Callable[[Session], T]) -> T:
        with store.read() as session:
            return query(session)

    def writing(change: Callable[[Session], T]) -> T:
        with store.write() as session:
            return change(session)

    def known() -> Known:
        return Known(controller.expected_starts(), controller.sentences())

    def the_job(session: Session, job_id: str) -> Job:
        job = records.find_job(session, job_id)
        if job is None:
            raise ApiError(404, f"no job {job_id}", "hybrid job ls shows all", "HB-404")
        return job

    # ------------------------------------------------------------------ jobs

    @routes.get("/status")
    def status(_: AnyUser) -> api.StatusOut:
        return controller.status()

    @routes.get("/jobs")
    def list_jobs(
        _: AnyUser,
        state: Annotated[list[str] | None, Query()] = None,
        user: str | None = None,
        limit: int = Query(default=200, ge=1, le=10_000),
    ) -> list[api.JobOut]:
        """Newest first."""
        states = {s.value for s in JobState}
        for name in state or ():
            if name not in states:
                raise ApiError(400, f"state {name!r} is none of: {', '.join(sorted(states))}")

        def query(session: Session) -> list[api.JobOut]:
            wanted = select(Job).order_by(col(Job.submitted_at).desc(), col(Job.id)).limit(limit)
            if state:
                wanted = wanted.where(col(Job.state).in_(state))
            if user:
                wanted = wanted.where(Job.user == user)
            now_known = known()
            return [job_out(session, job, now_known) for job in session.exec(wanted)]

        return reading(query)

    @routes.get("/jobs/{job_id}")
    def show_job(job_id: str, _: AnyUser) -> api.JobDetail:
        return reading(lambda s: job_detail(s, the_job(s, job_id), known(), clock.now()))

    @routes.get("/jobs/{job_id}/decisions")
    def decisions(job_id: str, _: AnyUser) -> list[api.DecisionOut]:
        def query(session: Session) -> list[api.DecisionOut]:
            found = journal.decisions_of(session, job_id)
            if not found:
                the_job(session, job_id)
            return [api.DecisionOut.model_validate(row) for row in found]

        return reading(query)

    @routes.get("/jobs/{job_id}/charges")
    def job_charges(job_id: str, _: AnyUser) -> list[api.ChargeOut]:
        def query(session: Session) -> list[api.ChargeOut]:
            open_lines = [
                line for line in ledger.accruing(session, clock.now()) if line.job_id == job_id
            ]
            return charges_out([*ledger.charges_of_job(session, job_id), *open_lines])

        return reading(query)

    @routes.post("/jobs/{job_id}/stop")
    def stop_job(job_id: str, caller: AnyUser) -> api.JobOut:
        def change(session: Session) -> tuple[api.JobOut, str | None]:
            job = the_job(session, job_id)
            if not caller.may_touch(job.user):
                raise ApiError(403, f"job {job.id} belongs to {job.user}", code="HB-403")
            request_stop(session, job, f"stopped by {caller.user}", clock.now())
            return job_out(session, job, known()), job.lease_id

        out, lease_id = writing(change)
        controller.wake(lease_id)
        deps.logs.wake(out.id)
        return out

    # ------------------------------------------------------------------ leases, pool, offers

    @routes.get("/leases")
    def list_leases(_: AnyUser, all: bool = False) -> list[api.LeaseOut]:
        """Open leases; with `all` also the last thousand released ones."""

        def query(session: Session) -> list[api.LeaseOut]:
            found = list(leases_in(session, OPEN))
            if all:
                past = (
                    select(Lease)
                    .where(Lease.state == LeaseState.RELEASED)
                    .order_by(col(Lease.id).desc())
                    .limit(1000)
                )
                found += reversed(session.exec(past).all())
            return [lease_out(lease) for lease in sorted(found, key=lambda le: le.id)]

        return reading(query)

    @routes.post("/leases/{lease_id}/release")
    def release_lease(lease_id: str, caller: Operator) -> api.LeaseOut:
        """End a warm lease now. One that serves a job is refused: stop the job."""

        def change(session: Session) -> api.LeaseOut:
            lease = get_lease(session, lease_id)
            if lease is None:
                raise ApiError(404, f"no lease {lease_id}", "hybrid lease ls", "HB-404")
            if lease.job_id is not None and lease.state is not LeaseState.RELEASING:
                raise ApiError(
                    409,
                    f"lease {lease_id} serves job {lease.job_id}",
                    f"hybrid job stop {lease.job_id}",
                    "HB-409",
                )
            if lease.state is LeaseState.READY:
                cause = f"released by {caller.user}"
                move_lease(session, lease, LeaseState.RELEASING, cause, clock.now())
            return lease_out(lease)

        out = writing(change)
        controller.wake(lease_id)
        return out

    @routes.get("/pool")
    def pool(_: AnyUser) -> api.PoolOut:
        return controller.pool()

    def mark(node_id: str, reason: str, by: str, draining: bool) -> api.PoolOut:
        if node_id not in {node.id for node in controller.pool().nodes}:
            raise ApiError(404, f"no node {node_id} in the pool", "hybrid pool ls", "HB-404")
        row = NodeMark(node_id=node_id, draining=draining, reason=reason, by=by, at=clock.now())
        writing(lambda s: marks.set_node_mark(s, row))
        controller.wake()
        return controller.pool()

    @routes.post("/pool/{node_id}/cordon")
    def cordon(node_id: str, body: api.NodeMarkIn, caller: Operator) -> api.PoolOut:
        """No new leases there; what runs goes on."""
        return mark(node_id, body.reason or "cordoned", caller.user, draining=False)

    @routes.post("/pool/{node_id}/drain")
    def drain(node_id: str, body: api.NodeMarkIn, caller: Operator) -> api.PoolOut:
        """Cordon, and let warm leases there go; jobs run to their end."""
        return mark(node_id, body.reason or "draining", caller.user, draining=True)

    @routes.post("/pool/{node_id}/uncordon")
    def uncordon(node_id: str, _: Operator) -> api.PoolOut:
        if not writing(lambda s: marks.clear_node_mark(s, node_id)):
            raise ApiError(404, f"node {node_id} is not cordoned", "hybrid pool ls", "HB-404")
        controller.wake()
        return controller.pool()

    @routes.post("/pool/cards/{uuid}/quarantine")
    def quarantine(uuid: str, body: api.NodeMarkIn, caller: Operator) -> api.PoolOut:
        """Never give this card out until it is healed; a lease that has it goes on."""
        nodes = {card.uuid: node.id for node in controller.pool().nodes for card in node.cards}
        if uuid not in nodes:
            raise ApiError(404, f"no card {uuid} in the pool", "hybrid pool ls", "HB-404")
        reason = f"{body.reason or 'no reason given'} (by {caller.user})"
        row = CardMark(uuid=uuid, node_id=nodes[uuid], reason=reason, at=clock.now())
        writing(lambda s: marks.quarantine(s, row))
        controller.wake()
        return controller.pool()

    @routes.post("/pool/cards/{uuid}/heal")
    def heal(uuid: str, _: Operator) -> api.PoolOut:
        if not writing(lambda s: marks.heal(s, uuid)):
            raise ApiError(404, f"card {uuid} is not in quarantine", "hybrid pool ls", "HB-404")
        controller.wake()
        return controller.pool()

    @routes.get("/offers")
    def offers(_: AnyUser) -> list[api.OfferOut]:
        return list(controller.offers())

    @routes.get("/providers")
    def providers(_: AnyUser) -> list[api.ProviderOut]:
        return list(controller.providers())

    @routes.post("/providers/{name}/check")
    def check_provider(name: str, _: Operator) -> list[api.CheckLineOut]:
        found = controller.check_provider(name)
        if found is None:
            raise ApiError(404, f"no provider {name}", "hybrid provider ls", "HB-404")
        return list(found)

    @routes.get("/leaks")
    def leaks(_: Operator) -> list[api.LeakOut]:
        return list(controller.leaks(terminate=False))

    @routes.post("/leaks/terminate")
    def terminate_leaks(_: Operator) -> list[api.LeakOut]:
        return list(controller.leaks(terminate=True))

    # ------------------------------------------------------------------ money

    def window(month: str | None) -> tuple[datetime, datetime]:
        return _month(month or clock.now().strftime("%Y-%m"))

    @routes.get("/ledger")
    def show_ledger(_: AnyUser, month: str | None = None) -> list[api.ChargeOut]:
        start, end = window(month)
        return reading(lambda s: charges_out(ledger.charges_between(s, start, end)))

    @routes.get("/report/cost")
    def cost(_: AnyUser, month: str | None = None, by: str = "project") -> api.CostReport:
        start, end = window(month)

        def query(session: Session) -> api.CostReport:
            lines = ledger.charges_between(session, start, end)
            return cost_report(lines, ledger.accruing(session, clock.now()), by, start, end)

        try:
            return reading(query)
        except ValueError as error:
            raise ApiError(400, str(error)) from error

    # ------------------------------------------------------------------ events

    @routes.get("/events")
    def events(
        _: AnyUser,
        after: int = 0,
        job: str | None = None,
        limit: int = Query(default=1000, ge=1, le=10_000),
    ) -> list[api.EventOut]:
        found = reading(lambda s: journal.events_after(s, after, limit, job))
        return [api.EventOut.model_validate(row) for row in found]

    @routes.get("/events/stream")
    async def stream(
        request: Request,
        _: AnyUser,
        after: int = 0,
        last_event_id: Annotated[int | None, Header()] = None,
    ) -> StreamingResponse:
        """Server-sent events; a client that reconnects goes on after its Last-Event-ID."""

        async def lines() -> AsyncIterator[str]:
            seen = last_event_id if last_event_id is not None else after
            while not await request.is_disconnected():
                newer = partial(journal.events_after, after_id=seen)
                found = await asyncio.to_thread(reading, newer)
                for row in found:
                    event = api.EventOut.model_validate(row)
                    seen = event.id
                    yield f"id: {event.id}\nevent: {event.entity}\n"
                    yield f"data: {event.model_dump_json()}\n\n"
                if not found:
                    yield ": still here\n\n"
                    await asyncio.sleep(EVENT_POLL_SECONDS)

        return StreamingResponse(lines(), media_type="text/event-stream")

    # ------------------------------------------------------------------ policy, tokens

    @routes.get("/policies")
    def policies(_: AnyUser) -> list[api.PolicyOut]:
        return list(controller.policies())

    @routes.get("/policies/{name}")
    def show_policy(name: str, _: AnyUser) -> api.PolicyOut:
        return _checked(lambda: controller.policy(name))

    @routes.post("/policies/validate")
    def validate(body: api.PolicyIn, _: AnyUser) -> api.PolicyOut:
        return _checked(lambda: controller.validate_policy(body))

    @routes.put("/policy")
    def use_policy(body: api.PolicyIn, caller: Admin) -> api.PolicyOut:
        out = _checked(lambda: controller.use_policy(body, caller.user))
        controller.wake()
        return out

    @routes.get("/tokens")
    def list_tokens(_: Admin) -> list[api.TokenOut]:
        found = reading(token_records.tokens)
        return [api.TokenOut.model_validate(row) for row in found]

    @routes.post("/tokens")
    def create_token(body: api.TokenIn, _: Admin) -> api.TokenCreated:
        try:
            token, secret = writing(
                lambda s: token_records.create_token(
                    s, body.user, body.role, clock.now(), body.note, body.expires_at
                )
            )
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        shown = api.TokenOut.model_validate(token)
        return api.TokenCreated(**shown.model_dump(), secret=secret)

    @routes.delete("/tokens/{token_id}")
    def revoke_token(token_id: str, _: Admin) -> dict[str, bool]:
        if not writing(lambda s: token_records.revoke_token(s, token_id, clock.now())):
            raise ApiError(404, f"no live token {token_id}", "hybrid token ls", "HB-404")
        door.forget()
        return {"revoked": True}

    return routes


def _month(month: str) -> tuple[datetime, datetime]:
    try:
        return month_window(month)
    except ValueError as error:
        raise ApiError(400, str(error)) from error


def _checked(call: Callable[[], T]) -> T:
    """A wrong policy is the caller's fault: 400 with the file, key and line."""
    try:
        return call()
    except PolicyError as error:
        raise ApiError(
            400, str(error), "hybrid policy explain lists every key", "HB-214"
        ) from error
