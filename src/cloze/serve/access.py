"""What protects the service before the body of a request is read: access control, and bounds of every connection.

``AccessMiddleware`` checks host, origin, key and capacity. It is plain ASGI around the whole app, so that it protects
every route; only ``/health`` is open. It also adds security headers to every response and counts requests in the
metrics.

``TimeoutProtocol`` is the HTTP protocol of a connection, with a deadline for every state and a bound for every buffer.
Uvicorn creates one per connection. Slow, endless or malformed requests end here, before the app.
"""

import asyncio
import base64
import binascii
import hmac
import ipaddress
import logging
import re
import time
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cloze.serve.outcomes import AuthenticationError, OriginError, OverloadedError, ServiceError, WrongHostError
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


# -- connections -------------------------------------------------------------------------------------------------------


MAX_HEAD = 32_768  # bytes of a request's first line and headers, and of its trailers
MAX_HEADERS = 128  # a short header takes many times its bytes in memory
MAX_HELD = 16_000_000  # bytes of pipelined requests that wait for earlier responses, over all connections
SLICE = 512  # bytes parsed at a time where a request may end; they hold at most 28 requests


class TimeoutProtocol(HttpToolsProtocol):
    """A connection in which every state has a deadline and every buffer a bound, with or without a valid key.

    =========================================  =================================================
    state                                      ends after
    =========================================  =================================================
    no request yet, or an incomplete head      ``headers_within``, however steadily bytes arrive
    receiving a body or computing a response   the timeout of the service
    response sent, but the body is incomplete  ``finish_within``; the input is discarded
    idle (keep-alive)                          uvicorn's ``timeout_keep_alive``
    a response that the client does not read   ``read_within``
    =========================================  =================================================

    The deadline of a state is set when it is entered; bytes that change nothing do not move it. Requests are parsed one
    at a time: what a client sends while an earlier answer is pending is held unparsed, and bounded for all connections
    together. Uvicorn's own class applies no limits to trailers, to pipelined requests, or to input after an answer.

    Beyond ``most_connections``, each new connection closes the one that has waited longest for a request, so that idle
    connections of many addresses cannot keep others out.
    """

    headers_within = 10.0  # seconds
    finish_within = 2.0
    read_within = 30.0
    most_connections = 2000
    held = 0  # bytes of held input over all connections (a class attribute, like the two below)
    connected = 0
    waiting: ClassVar[dict["TimeoutProtocol", None]] = {}  # connections without a complete head, oldest first

    def connection_made(self, transport: Any) -> None:
        """Set the deadline for the first request."""
        super().connection_made(transport)
        self._input = b""  # received but not parsed yet, because an earlier response is pending
        self._ended = False  # whether no further input is parsed
        self._refusal: str | None = None  # an error to send after the pending responses
        self._requests = self._unanswered = 0
        self._receiving = self._head_done = self._progress = False
        self._silent = self._body_left = 0  # bytes parsed since the last progress; remaining bytes of the body
        self._state: tuple[str, int] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        TimeoutProtocol.connected += 1
        self._update_deadline()
        if TimeoutProtocol.connected > self.most_connections:
            next(iter(TimeoutProtocol.waiting))._close()

    def data_received(self, data: bytes) -> None:
        """Parse the input as far as possible now, and hold the rest."""
        if not self._ended:
            self._hold(self._input + data if self._input else data)
            self._parse()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._end_input()
        TimeoutProtocol.connected -= 1
        TimeoutProtocol.waiting.pop(self, None)
        for timer in (self._timer, self._read_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    # -- the parser's events -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Record that a request has started."""
        super().on_message_begin()
        self._requests += 1
        self._receiving, self._head_done, self._progress, self._body_left = True, False, True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Accept a header; ignore trailers, which would be added to the headers after the access check."""
        if self._head_done:
            return
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")  # which the parser reports as malformed input
        super().on_header(name, value)
        if name.lower() == b"content-length" and value.isdigit():
            self._body_left = int(value[:20])

    def on_headers_complete(self) -> None:
        """Start the request, or queue it if it is in the same slice of input as the previous one."""
        super().on_headers_complete()
        self._head_done = self._progress = True
        self._unanswered += 1

    def on_body(self, body: bytes) -> None:
        """Accept a part of a body; uvicorn drops it if the response is complete."""
        super().on_body(body)
        self._progress = True
        self._body_left -= len(body)

    def on_message_complete(self) -> None:
        """Record that a request is complete."""
        super().on_message_complete()
        self._receiving, self._progress, self._body_left = False, True, 0

    def on_response_complete(self) -> None:
        """Parse held input, and start the timer within which the client must read the response."""
        self._unanswered -= 1
        self._forget_request()
        super().on_response_complete()
        self._unset_keepalive_if_required()  # any received byte would cancel uvicorn's timer
        if self._read_timer is not None:
            self._read_timer.cancel()
        # The write buffer is checked when the timer fires, because the response has not been sent yet at this point.
        self._read_timer = self.loop.call_later(self.read_within, self._close_if_unread)
        if self._refusal is not None and not self._unanswered:
            super().send_400_response(self._refusal)
        self._parse()

    def send_400_response(self, msg: str) -> None:
        """Reject malformed input, after the responses to earlier requests."""
        self._end_input()
        if self._is_partial and self._unanswered > 1:  # the malformed request waits for earlier ones
            self.pipeline.popleft()
            self._unanswered -= 1
        elif self._is_partial and self.cycle.response_started:
            self.transport.close()
            return
        elif self._is_partial or not self._unanswered:
            super().send_400_response(msg)
            return
        self._refusal = msg

    # -- parsing -----------------------------------------------------------------------------------------------------

    @property
    def _is_partial(self) -> bool:
        """Return whether a request with a complete head is still being received and has no response yet."""
        return self._receiving and self._head_done and not self.cycle.response_complete

    def _parse(self) -> None:
        view, position = memoryview(self._input), 0
        # A request is parsed only after all earlier ones are answered.
        while position < len(view) and self._unanswered <= self._is_partial and not self._is_closing:
            # The parser cannot be stopped at the end of a request. Where a request may end, input is therefore parsed
            # in small slices, since a large one could hold thousands of requests.
            size = max(SLICE, self._body_left)
            self._feed(view[position : position + size])
            position += size
        self._hold(b"" if self._is_closing else bytes(view[position:]))
        if self._input:
            self.flow.pause_reading()
        self._update_deadline()

    def _feed(self, part: memoryview) -> None:
        self._progress = False
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            # Answered as a plain request, and as the last one: the client may switch to another protocol.
            self._end_input()
            self.cycle.keep_alive = False
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        else:
            # Too many bytes without progress are an endless head, trailer, chunk extension or series of blank lines.
            self._silent = 0 if self._progress else self._silent + len(part)
            if self._silent > MAX_HEAD:
                self.send_400_response("Headers too large.")

    @property
    def _is_closing(self) -> bool:
        return self._ended or self.transport.is_closing()

    def _hold(self, data: bytes) -> None:
        TimeoutProtocol.held += len(data) - len(self._input)
        self._input = data
        if TimeoutProtocol.held > MAX_HELD and self._unanswered:
            self._end_input()
            self.cycle.keep_alive = False  # the pending response is the last one

    def _end_input(self) -> None:
        self._ended = True
        TimeoutProtocol.held -= len(self._input)
        self._input = b""

    def _forget_request(self) -> None:
        """Release the memory of an answered request, which uvicorn keeps until the next one."""
        if self.cycle.response_complete:
            self.cycle.scope, self.cycle.body = {}, bytearray()  # type: ignore[typeddict-item]
            if self._head_done:
                self.scope, self.headers, self.url = {}, [], b""  # type: ignore[typeddict-item]

    # -- deadlines ---------------------------------------------------------------------------------------------------

    def _update_deadline(self) -> None:
        """Set the deadline of the current state if it has just been entered; none while a response is pending."""
        state, seconds = self._find_state()
        if state == self._state:
            return
        self._state = state
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if state is None else self.loop.call_later(seconds, self._close)
        TimeoutProtocol.waiting.pop(self, None)
        if state is not None and state[0] != "discarding":
            TimeoutProtocol.waiting[self] = None

    def _find_state(self) -> tuple[tuple[str, int] | None, float]:
        if self._unanswered or self.transport.is_closing():
            return None, 0.0
        if not self._receiving and self._requests:
            return ("idle", self._requests), self.timeout_keep_alive
        if self._receiving and self._head_done:
            return ("discarding", self._requests), self.finish_within
        return ("head", self._requests), self.headers_within

    def _close(self) -> None:
        TimeoutProtocol.waiting.pop(self, None)
        self._end_input()
        self.transport.close()

    def _close_if_unread(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
