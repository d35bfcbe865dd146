"""Access control: host, origin, key and capacity, checked before the body of a request is read.

``AccessMiddleware`` is plain ASGI around the whole app, so that it protects every route; only ``/health`` is open. It
also adds security headers to every response and counts requests in the metrics.
"""

import base64
import binascii
import hmac
import ipaddress
import logging
import re
import time
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloze.serve.errors import AuthenticationError, OriginError, OverloadedError, ServiceError, WrongHostError
from cloze.serve.queue import FairShare
from cloze.serve.schemas import client_of
from cloze.serve.service import Service, error_response

logger = logging.getLogger("cloze.serve")

OPEN = {"/health"}
CONTENT_POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS = [
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
# Texts have one token per four or five bytes. The higher estimate avoids rejecting requests that would have fitted.
BYTES_PER_TOKEN = 8
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::\d{1,5})?", re.ASCII)


class AccessMiddleware:
    """Passes requests on to the app, or rejects them."""

    def __init__(self, app: ASGIApp, service: Service, routes: frozenset[str]) -> None:
        self._app, self._service, self._routes = app, service, routes
        self._key = service.settings.key.encode() if service.settings.key else None
        self._trusted = {name.lower() for name in service.settings.trusted}
        self._requests = FairShare(service.settings.limits.connections)

    @property
    def in_flight(self) -> int:
        """Return the number of requests in progress."""
        return self._requests.total

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics, start, status = self._service.metrics, time.monotonic(), 0

        # HEAD is handled as GET; the body is dropped, but the headers keep its length.
        is_head, client = scope["method"] == "HEAD", client_of(scope)
        request = {**scope, "method": "GET"} if is_head else scope

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            if message["type"] == "http.response.start":
                status = message["status"]
                closing = [(b"connection", b"close")] if self._service.draining else []
                message["headers"] = [*message["headers"], *HEADERS, *closing]
            await send(message)

        has_room = self._requests.has_room(client, 1)
        self._requests.add(client, 1)
        metrics.in_flight.set(self.in_flight)
        try:
            self._check(request, client, has_room=has_room)
            await self._app(request, receive, send_with_headers)
        except ServiceError as error:
            asks_for_page = _header(scope, b"accept").startswith("text/html")
            await error_response(error, password=asks_for_page)(request, receive, send_with_headers)
        except Exception:
            logger.exception("a bug in cloze, at %s", scope["path"][:80])  # the app has sent the response already
        finally:
            self._requests.add(client, -1)
            metrics.in_flight.set(self.in_flight)
            route = scope["path"] if scope["path"] in self._routes else "other"
            metrics.requests.labels(route, str(status or "gone")).inc()
            metrics.request_seconds.labels(route).observe(time.monotonic() - start)

    def _check(self, scope: Scope, client: str, *, has_room: bool) -> None:
        if scope["path"] in OPEN:
            return
        host = _header(scope, b"host")
        if not self._trusts(host):
            raise WrongHostError(
                f"this is not {host[:80]!r}; if it should be, start cloze serve with --trust {host[:80]}"
            )
        origin = _header(scope, b"origin")
        if origin and _host_of(origin) != host.lower():
            raise OriginError("the request comes from a page on another site, which is not allowed")
        if self._key is not None and not self._knows_key(_header(scope, b"authorization")):
            raise AuthenticationError("a key is needed: Authorization: Bearer KEY")
        if not has_room:
            raise OverloadedError(f"{self.in_flight} requests are in flight; try again in 1 s", "too_many_requests", 1)
        if scope["method"] == "POST":
            self._check_room(_header(scope, b"content-length"), client)

    def _check_room(self, length: str, client: str) -> None:
        """Reject a request that will not fit into any queue, before its body is read, when this costs least."""
        tokens = int(length[:12]) // BYTES_PER_TOKEN if length.isdecimal() else 1
        refusals = [batcher.refusal(client, tokens) for batcher in self._service.models.batchers]
        if refusals[0] is not None and None not in refusals:
            raise refusals[0]

    def _trusts(self, host: str) -> bool:
        """Return whether a Host header is an IP address or a trusted name, as a protection against DNS rebinding."""
        name = _name_of(host)
        if name == "localhost" or "*" in self._trusted or name in self._trusted:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _knows_key(self, header: str) -> bool:
        """Check the key, sent as Bearer (by programs) or as Basic with any user name (by browsers)."""
        assert self._key is not None
        scheme, _, value = header.partition(" ")
        given = value.strip().encode("latin-1", "replace")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given, self._key)


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _host_of(origin: str) -> str:
    """Return the host and port of an origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name_of(host: str) -> str:
    """Return the name or address in a Host header without the port; empty if it is malformed."""
    match = _HOST.fullmatch(host.lower())
    return (match[1] or match[2]) if match else ""
