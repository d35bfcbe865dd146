"""Slow, endless and malformed connections: each state has a timeout, and nothing accumulates (T24 in short)."""

import asyncio
import contextlib
import itertools
import resource
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from torture.floods import KEY, FloodSettings, Patience, forms, hold_on
from torture.services import Running, listening, running

from cloze.serve import access, server
from cloze.serve.access import MAX_HEAD, TimeoutProtocol
from cloze.serve.settings import Limits, ServiceSettings

HOST = b"Host: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"POST /embed HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


class Impatient(TimeoutProtocol):
    """The protocol with shorter time limits."""

    headers_within = 0.6
    finish_within = 0.4
    read_within = 1.0


@pytest.fixture(scope="module")
def service(folders: dict[str, str]) -> Iterator[Running]:
    limits = Limits(timeout=2.0, body=200_000)
    with running(ServiceSettings({"base": folders["base"]}, limits=limits)) as found:
        yield found


@pytest.fixture(scope="module")
def port(service: Running) -> Iterator[int]:
    with listening(service, Impatient, idle=1) as address:
        yield int(address.rpartition(":")[2])


class Client:
    """A socket, and the bytes that it has received."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.found = b""

    def send(self, data: bytes) -> None:
        """Send all bytes, unless the connection is closed."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def read_until(self, count: int) -> list[int]:
        """Return the statuses of a number of responses."""
        while len(self.statuses) < count and (part := self.socket.recv(1 << 16)):
            self.found += part
        return self.statuses

    def read(self) -> list[int]:
        """Return the statuses of all responses once the connection is closed."""
        try:
            while part := self.socket.recv(1 << 16):
                self.found += part
        except ConnectionError:
            pass
        return self.statuses

    @property
    def statuses(self) -> list[int]:
        """Return the statuses of the responses received so far."""
        return [int(part[:3]) for part in self.found.split(b"HTTP/1.1 ")[1:]]


@pytest.fixture
def client(port: int) -> Iterator[Client]:
    made = Client(port)
    yield made
    made.socket.close()


def is_closed_while(client: Client, again: bytes, seconds: float = 10) -> bool:
    """Return whether the connection is closed while bytes are sent repeatedly."""
    client.socket.settimeout(0.1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        client.send(again)
        try:
            part = client.socket.recv(1 << 16)
        except TimeoutError:
            continue
        except ConnectionError:
            return True
        client.found += part
        if not part:
            return True
    return False


@pytest.mark.parametrize(
    ("first", "again", "statuses"),
    [
        (b"", b"", []),
        (b"", b"\r\n", []),
        (b"GET /health HTTP/1.1\r\n", b"X: 1\r\n", []),
        (HEALTH, b"\r\n", [200]),
        (HEALTH + b"GET /heal", b"t", [200]),
        (b"POST /nothing HTTP/1.1\r\nContent-Length: 1000\r\n" + HOST + b"\r\n", b"x", [404]),
        (b"GET /health HTTP/1.1\r\nContent-Length: 1000\r\n" + HOST + b"\r\n", b"x", [200]),
        (CHUNKED + b"0\r\n", b"X: 1\r\n", [408]),
        (CHUNKED + b"1;", b"x", [408]),
    ],
    ids=["silence", "blank lines", "headers", "idle", "half", "body", "body of a GET", "trailers", "extension"],
)
def test_bytes_that_change_nothing_do_not_keep_a_connection(
    first: bytes, again: bytes, statuses: list[int], client: Client
) -> None:
    client.send(first)
    assert is_closed_while(client, again)
    assert client.statuses == statuses


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (CHUNKED + b"0\r\n", b"X-Trailer: 1\r\n"),
        (CHUNKED + b"0\r\nX: ", b"x"),
        (CHUNKED + b"1;", b"x"),
        (b"GET /", b"a"),
        (HEALTH, b"\r\n"),
        (b"GET / HTTP/1.1\r\nX: ", b"x"),
    ],
    ids=["trailers", "trailer", "extension", "path", "blank lines", "header"],
)
def test_endless_input_is_cut_off(first: bytes, again: bytes, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endless input is cut off by its size, long before any timeout."""
    for name in ("headers_within", "finish_within"):
        monkeypatch.setattr(Impatient, name, 60.0)
    sent, flood = 0, again * (10_000 // len(again))
    client.send(first)
    client.socket.settimeout(0.02)
    while sent < 20 * MAX_HEAD:
        try:
            sent += client.socket.send(flood)
            client.found += client.socket.recv(1 << 16)
            if 400 in client.statuses:
                break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    else:
        raise AssertionError("all of it was taken")
    assert 400 in client.read()


def test_trailers_are_no_headers(client: Client, folders: dict[str, str]) -> None:
    body = b'{"texts": "cat"}'
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
    no_host = b"POST /embed HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    client.send(CHUNKED + chunk + b"X: 1\r\n\r\n")
    assert client.read_until(1) == [200]
    client.send(no_host + chunk + HOST + b"\r\n")
    assert client.read_until(2) == [200, 421]
    with (
        running(ServiceSettings({"base": folders["base"]}, key=KEY)) as locked,
        listening(locked, Impatient) as address,
    ):
        other = Client(int(address.rpartition(":")[2]))
        other.send(CHUNKED + chunk + b"Authorization: Bearer " + KEY.encode() + b"\r\n\r\n")
        with other.socket:
            assert other.read() == [401]


def test_headers_are_bounded_in_number(client: Client) -> None:
    client.send(b"GET /health HTTP/1.1\r\n" + HOST + b"a:\r\n" * 200 + b"\r\n")
    assert client.read() == [400]


def test_an_answer_is_not_lost_to_the_next_request(client: Client) -> None:
    body = b'{"texts": "%s"}' % (b" " * 100_000)
    request = b"POST /embed HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body)
    client.send(request + body + HEALTH[:20])
    assert client.read_until(1) == [200]
    client.send(HEALTH[20:])
    assert client.read_until(2) == [200, 200]
    client.send(HEALTH * 3 + b"no HTTP\r\n\r\n")
    assert client.read() == [200] * 5 + [400]


def test_a_body_that_is_late_does_not_end_the_connection(client: Client) -> None:
    client.send(b"POST /nothing HTTP/1.1\r\nContent-Length: 3\r\n" + HOST + b"\r\n")
    assert client.read_until(1) == [404]
    client.send(b"abc")
    client.send(HEALTH)
    assert client.read_until(2) == [404, 200]


def test_pipelined_requests_are_answered_in_order(
    client: Client, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0
    begin = TimeoutProtocol.on_headers_complete

    def counted(connection: TimeoutProtocol) -> None:
        nonlocal most
        begin(connection)
        most = max(most, connection._unanswered)

    monkeypatch.setattr(TimeoutProtocol, "on_headers_complete", counted)
    client.send(HEALTH * 1000)
    assert client.read() == [200] * 1000
    assert most <= 512 // len(HEALTH) + 2
    assert TimeoutProtocol.held == 0
    assert service.app.in_flight == 0


def test_held_input_is_bounded_together(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MAX_HELD", 5000)
    client.send(HEALTH * 1000)
    statuses = client.read()
    assert 1 <= len(statuses) < 1000
    assert set(statuses) == {200}
    assert TimeoutProtocol.held == 0


def test_idle_connections_make_room_for_new_ones(folders: dict[str, str]) -> None:
    """The connections that have been idle longest are closed, but not those with a request in progress."""

    class Crowded(TimeoutProtocol):
        most_connections = 5
        headers_within = 60.0  # so that no connection is closed because of its age

    with running(ServiceSettings({"base": folders["base"]})) as service, listening(service, Crowded) as address:
        port = int(address.rpartition(":")[2])
        busy = Client(port)
        busy.send(b"POST /embed HTTP/1.1\r\n" + HOST + b"Content-Length: 17\r\n\r\n")
        idle = [Client(port) for _ in range(12)]
        assert [client.read() for client in idle[:6]] == [[]] * 6
        late = Client(port)
        late.send(HEALTH)
        assert late.read_until(1) == [200]
        busy.send(b'{"texts": ["cat"]}'[:17])
        assert busy.read_until(1) == [400]
        assert TimeoutProtocol.connected <= 5
        for client in (busy, late, *idle):
            client.socket.close()


@pytest.mark.parametrize(
    ("soft", "hard", "most"),
    [(1024, 4096, 2000), (1024, 1024, 924), (50_000, 50_000, 2000), (-1, -1, 2000), (64, 64, 1)],
)
def test_connections_fit_into_the_limit_of_open_files(
    soft: int, hard: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    assert server.allow_connections(1000) == most
    assert limits[-1] == ((2100, 4096) if hard == 4096 else (soft, hard))


def test_an_upgrade_is_answered_and_ends(client: Client) -> None:
    client.send(b"GET /health HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + HOST + b"\r\n\x81\x00")
    assert client.read() == [200]


def test_floods(folders: dict[str, str]) -> None:
    """T24 with some of its forms and shorter limits."""
    settings = FloodSettings(patience=Patience(0.6, 1.0, 0.4, 2.0), slack=15.0)
    every = [form for form in forms() if form.state != "read"]
    with (
        running(ServiceSettings({"base": folders["base"]}, key=KEY)) as locked,
        listening(locked, Impatient, idle=1) as address,
    ):

        async def flood() -> list[str | None]:
            chosen = itertools.islice(every, 0, None, 4)
            return await asyncio.gather(*(hold_on(address, form, settings) for form in chosen))

        assert [found for found in asyncio.run(flood()) if found is not None] == []
        assert httpx.get(f"{address}/health").status_code == 200
        assert TimeoutProtocol.held == 0


def test_a_connection_that_is_not_closed_would_be_noticed(folders: dict[str, str]) -> None:
    settings = FloodSettings(patience=Patience(0.3, 0.3, 0.3, 0.3), slack=0.2)
    with running(ServiceSettings({"base": folders["base"]})) as open_one, listening(open_one, idle=5) as address:
        form = next(form for form in forms() if form.name == "after /health, blank lines")
        assert asyncio.run(hold_on(address, form, settings)) == "after /health, blank lines: open after 0 s"
