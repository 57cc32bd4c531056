"""What every request passes before it is looked at, and every answer on its way out. Plain ASGI.

Size of the body and the bearer token; security headers, counts and times.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pmlm.serve.limits import Limits
from pmlm.serve.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_HEADERS = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), microphone=(), geolocation=()",
}
_GUARDED = ("/v1/", "/metrics")


class Refused(Exception):
    def __init__(self, status: int, line: str) -> None:
        self.status, self.line = status, line


class Guard:
    def __init__(self, app: App, *, limits: Limits, metrics: Metrics, token: str | None) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), [500]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                message["headers"] = [*message.get("headers", ()), *_HEADERS.items()]
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, await self._whole_body(scope, receive), sending)
        except Refused as refused:
            await _refuse(sending, refused)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.add("pmlm_requests_total", route=route, status=status[0])
            if route.startswith("/v1/"):
                self.metrics.observe("pmlm_request_seconds", time.perf_counter() - begin)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if self.token is not None and scope["path"].startswith(_GUARDED):
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if not secrets.compare_digest(given.strip(), self.token) or kind.lower() != b"bearer":
                raise Refused(401, "this server wants a token: send the header `Authorization: Bearer TOKEN`")

    async def _whole_body(self, scope: Scope, receive: Receive) -> Receive:
        """The body read up to the limit and no further; then whatever else the client says."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        most = self.limits.body_bytes
        if not length.isdigit() or int(length) > most:
            raise Refused(413, f"the body is larger than {most} bytes, which is all this server reads")
        body, more = b"", scope["method"] in ("POST", "PUT", "PATCH")
        try:
            async with asyncio.timeout(self.limits.seconds):
                while more:
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise Refused(413, f"the body is larger than {most} bytes, which is all this server reads")
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {self.limits.seconds:g} s") from None
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receiving() -> Message:
            return parts.pop() if parts else await receive()

        return receiving


async def _refuse(send: Send, refused: Refused) -> None:
    body = json.dumps({"error": refused.line}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
