"""The ASGI application."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hybrid import __version__
from hybrid.gateway import hybrid_api
from hybrid.gateway.auth import AuthMiddleware
from hybrid.gateway.deps import GatewayDeps
from hybrid.gateway.ray_jobs import RayJobs
from hybrid.store.engine import StoreBusy


def create_app(deps: GatewayDeps) -> ASGIApp:
    """Ray's Jobs API and Hybrid's own, behind one door."""
    own = FastAPI(
        title="Hybrid",
        version=__version__,
        description="Ray's Jobs API with a durable queue, and what Hybrid knows of it.",
        redirect_slashes=False,
    )
    everything = Starlette(
        routes=[
            *RayJobs(deps).routes(),
            Route("/healthz", _healthz, methods=["GET"]),
        ],
        exception_handlers={StoreBusy: _busy},
    )
    everything.router.redirect_slashes = False
    everything.router.default = own
    door = AuthMiddleware(everything, deps.store, deps.clock, deps.settings.auth_required)
    own.include_router(hybrid_api.router(deps, door))
    own.add_exception_handler(hybrid_api.ApiError, hybrid_api.api_error)
    own.add_exception_handler(StoreBusy, _busy)
    return door


async def _healthz(_request: Request) -> Response:
    return PlainTextResponse("ok")


async def _busy(_request: Request, error: Exception) -> Response:
    """Nothing was written: the client may simply repeat the call."""
    body = {"error": str(error), "hint": "repeat the call in a moment", "code": "HB-503"}
    return JSONResponse(body, status_code=503, headers={"Retry-After": "2"})
