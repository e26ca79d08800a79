"""What stands before every route: hosts, the token, the time limit, headers, errors as JSON, and the counters."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phrasechain.core.errors import PhrasechainError
from phrasechain.web.errors import ApiError
from phrasechain.web.metrics import Metrics

LOG = logging.getLogger("phrasechain.web")
HEALTH = "/api/health"
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the server."""

    token: str | None = None  # of all of the API but /api/health
    hosts: Collection[str] | None = None  # names by which it may be called; None: any
    origins: Collection[str] = ()  # other sites whose pages may use the API (CORS)


class Guard:
    """The outermost part of the application."""

    def __init__(self, app: ASGIApp, access: Access, metrics: Metrics, paths: Collection[str], seconds: float) -> None:
        self.app, self.access, self.metrics, self.paths, self.seconds = app, access, metrics, paths, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _Answer(send, scope["path"], self._cors_headers(scope))
        start = time.perf_counter()
        try:
            self._check(scope)
            if scope["method"] == "OPTIONS" and answer.is_for_other_site:
                await answer.allow()
                return
            async with asyncio.timeout(self.seconds):
                await self.app(scope, receive, answer.send)
        except Exception as error:
            await answer.fail(_as_api_error(error, self.seconds))
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.observe(path, answer.status, time.perf_counter() - start)

    def _check(self, scope: Scope) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if self.access.hosts is not None and _host_name(headers.get(b"host", "")) not in self.access.hosts:
            raise ApiError(400, "the server does not go by this name; use the address that it printed")
        if not scope["path"].startswith("/api/"):
            return
        origin = headers.get(b"origin")
        if headers.get(b"sec-fetch-site") == "cross-site" and origin not in self.access.origins:
            raise ApiError(403, "pages of other sites may not use this server; its --cors option lets one")
        if scope["method"] == "OPTIONS" and origin in self.access.origins:
            return
        if self.access.token is not None and scope["path"] != HEALTH:
            given = headers.get(b"authorization", "").encode("utf-8")
            if not secrets.compare_digest(given, f"Bearer {self.access.token}".encode()):
                message = "this server asks for a token: send the header Authorization: Bearer TOKEN"
                raise ApiError(401, message, {"WWW-Authenticate": "Bearer"})

    def _cors_headers(self, scope: Scope) -> dict[str, str]:
        origin = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"), None)
        if origin is None or origin not in self.access.origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-allow-headers": "authorization, content-type",
            "access-control-allow-methods": "GET, POST",
            "cross-origin-resource-policy": "cross-origin",
            "vary": "origin",
        }


class _Answer:
    """Sends an answer with the headers of every answer, or an error where none has begun."""

    def __init__(self, send: Send, path: str, headers: dict[str, str]) -> None:
        self._send, self.status, self._has_begun = send, 500, False
        self.is_for_other_site = bool(headers)
        self._headers = _HEADERS | {"cache-control": "no-store" if path.startswith("/api/") else "no-cache"} | headers

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_begun, self.status = True, message["status"]
            own = {name.lower() for name, _ in message["headers"]}
            more = [(name.encode(), value.encode()) for name, value in self._headers.items()]
            message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in own)]
        await self._send(message)

    async def allow(self) -> None:
        """Tell a browser that asks beforehand that a page of another site may send its request."""
        await self.send({"type": "http.response.start", "status": 204, "headers": []})
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, error: ApiError) -> None:
        if self._has_begun:
            return
        body = json.dumps({"error": error.message}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body))} | error.headers
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": pairs})
        await self._send({"type": "http.response.body", "body": body})


def _as_api_error(error: Exception, seconds: float) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PhrasechainError):
        return ApiError(422, str(error))
    if isinstance(error, TimeoutError):
        return ApiError(504, f"not done within {seconds:g} seconds; send less, or try again later")
    LOG.error("a request failed", exc_info=error)
    return ApiError(500, "something went wrong in the server; its log says what")


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
