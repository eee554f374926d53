"""The ASGI application."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from hybrid import __version__
from hybrid.gateway import hybrid_api
from hybrid.gateway.auth import AuthMiddleware
from hybrid.gateway.deps import GatewayDeps
from hybrid.gateway.ray_jobs import RayJobs
from hybrid.store.engine import StoreBusy


def create_app(deps: GatewayDeps) -> FastAPI:
    """Ray's Jobs API and Hybrid's own, behind one door."""
    app = FastAPI(
        title="Hybrid",
        version=__version__,
        description="Ray's Jobs API with a durable queue, and what Hybrid knows of it.",
        redirect_slashes=False,
    )
    auth: list[AuthMiddleware] = []

    class Door(AuthMiddleware):
        """The one middleware of this app; kept so that a revoked token leaves its cache."""

        def __init__(self, app: ASGIApp) -> None:
            super().__init__(app, deps.store, deps.clock, deps.settings.auth_required)
            auth.append(self)

    app.add_middleware(Door)
    app.include_router(RayJobs(deps).router())
    app.include_router(hybrid_api.router(deps, lambda: auth[-1] if auth else None))
    app.add_exception_handler(hybrid_api.ApiError, hybrid_api.api_error)
    app.add_exception_handler(StoreBusy, _busy)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> PlainTextResponse:
        return PlainTextResponse("ok")

    return app


async def _busy(_request: Request, error: Exception) -> Response:
    """Nothing was written: the client may simply repeat the call."""
    body = {"error": str(error), "hint": "repeat the call in a moment", "code": "HB-503"}
    return JSONResponse(body, status_code=503, headers={"Retry-After": "2"})
