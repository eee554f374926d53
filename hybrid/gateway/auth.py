"""Who calls, and what may they do. In the way of Ray: bearer token, 401 missing, 403 wrong."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from http.cookies import SimpleCookie

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hybrid.ports import Clock
from hybrid.store.engine import Store
from hybrid.store.tokens import find_token, hash_of

#: Open to everybody: what a client asks before it knows whether it needs a token.
OPEN_PATHS = frozenset({"/api/authentication_mode", "/healthz"})
CACHE_SECONDS = 5.0
_RANK = {"user": 0, "operator": 1, "admin": 2}


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity that a token stands for. Names in a request's own fields mean nothing."""

    user: str
    role: str

    def may(self, role: str) -> bool:
        return _RANK[self.role] >= _RANK[role]

    def may_touch(self, owner: str) -> bool:
        """One's own jobs, or everybody's from operator on."""
        return self.user == owner or self.may("operator")


#: Without authentication (loopback only) everybody is this one user, with every right.
ANYBODY = Caller("local", "admin")


class AuthMiddleware:
    """Puts a `Caller` into the scope of each request and websocket, or refuses it."""

    def __init__(self, app: ASGIApp, store: Store, clock: Clock, required: bool) -> None:
        self._app, self._store, self._clock, self._required = app, store, clock, required
        self._cache: dict[str, tuple[float, Caller]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if _from_a_foreign_page(scope, headers):
            await _refuse(scope, receive, send, 405, "Method Not Allowed for browser requests.")
            return
        if not self._required or scope["path"] in OPEN_PATHS:
            scope["caller"] = ANYBODY if not self._required else None
            await self._app(scope, receive, send)
            return
        secret = _secret(headers)
        if not secret:
            text = "Unauthorized: Missing authentication token"
            await _refuse(scope, receive, send, 401, text)
            return
        caller = await self._caller(secret)
        if caller is None:
            text = "Forbidden: Invalid authentication token"
            await _refuse(scope, receive, send, 403, text)
            return
        scope["caller"] = caller
        await self._app(scope, receive, send)

    async def _caller(self, secret: str) -> Caller | None:
        """Looked up by hash, so that no comparison of secrets can be timed; kept for a moment."""
        key = hash_of(secret)
        kept = self._cache.get(key)
        if kept is not None and time.monotonic() - kept[0] < CACHE_SECONDS:
            return kept[1]
        caller = await asyncio.to_thread(self._look_up, secret)
        self._cache.pop(key, None)
        if caller is not None:
            if len(self._cache) > 10_000:
                self._cache.clear()
            self._cache[key] = (time.monotonic(), caller)
        return caller

    def _look_up(self, secret: str) -> Caller | None:
        with self._store.read() as session:
            token = find_token(session, secret, self._clock.now())
            return Caller(token.user, token.role) if token is not None else None

    def forget(self) -> None:
        """A token was revoked: ask the store again."""
        self._cache.clear()


def _secret(headers: Headers) -> str:
    """From the places that Ray's clients and proxies use, in Ray's order."""
    given = headers.get("authorization") or headers.get("x-ray-authorization") or ""
    if not given:
        cookie: SimpleCookie = SimpleCookie(headers.get("cookie", ""))
        morsel = cookie.get("ray-authentication-token")
        return morsel.value if morsel is not None else ""
    scheme, _, secret = given.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else given.strip()


def _from_a_foreign_page(scope: Scope, headers: Headers) -> bool:
    """A web page of another origin must not act with the reader's network position: that is how
    Ray's open job API was attacked from browsers."""
    if scope["type"] == "http" and scope["method"] in ("GET", "HEAD", "OPTIONS"):
        return False
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.split("://")[-1] != headers.get("host")


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 4000 + status, "reason": text})
        return
    await PlainTextResponse(text, status_code=status)(scope, receive, send)
