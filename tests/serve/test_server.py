"""The real service in a separate process: it starts, handles load, and shuts down without losing a response."""

import asyncio
import json
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from torture.drains import DrainSettings
from torture.drains import run as drain
from torture.failing_models import FaultSettings
from torture.failing_models import run as let_fail
from torture.load import Figures, Target, press, press_from
from torture.overload import OverloadSettings, judge
from torture.overload import press as overload
from torture.services import Process, listening, process, running
from torture.shares import ShareSettings
from torture.shares import compare as compare_shares
from torture.slow_clients import Seen, SlowSettings, let_in
from torture.soak import SoakSettings
from torture.soak import watch as soak
from torture.swaps import SwapSettings, ask_alone, compare, swap_folders

from cloze.options import PrecisionName
from cloze.progress import Silent
from cloze.serve.access import TimeoutProtocol
from cloze.serve.settings import ServiceSettings

BODY = json.dumps({"texts": "the cat sat"}).encode()


@pytest.fixture(scope="module")
def service_process(folders: dict[str, str]) -> Iterator[Process]:
    flags = ("--threads", "1", "--timeout", "2", "--body", "100000", "--queue", "2048")
    with process([folders["base"]], *flags) as found:
        yield found


def test_it_answers_and_reports_metrics(service_process: Process) -> None:
    figures = asyncio.run(press(Target(f"{service_process.address}/embed"), [BODY], connections=4, requests=40))
    assert figures.statuses == {"200": 40}
    metrics = httpx.get(f"{service_process.address}/metrics").text
    assert 'cloze_requests_total{route="/embed",status="200"} 40.0' in metrics
    for name in ("cloze_queue_seconds", "cloze_tokenization_seconds", "cloze_inference_seconds", "process_open_fds"):
        assert name in metrics


def test_headers_without_an_end(service_process: Process) -> None:
    port = int(service_process.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(10)
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000)
        assert client.recv(100).startswith(b"HTTP/1.1 400")


def test_unread_responses_are_dropped(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()
    give_up = TimeoutProtocol._close_if_unread

    def recording(connection: TimeoutProtocol) -> None:
        give_up(connection)
        given_up.set()

    monkeypatch.setattr(TimeoutProtocol, "_close_if_unread", recording)
    monkeypatch.setattr(TimeoutProtocol, "read_within", 1.0)
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(ServiceSettings({"base": folders["base"]})) as service, listening(service) as address:
        size, port = len(service.get("/openapi.json").content), int(address.rpartition(":")[2])
        times = 20_000_000 // size  # more than the system buffers for a connection
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(30)
            client.connect(("127.0.0.1", port))
            client.sendall(ask * times)
            assert given_up.wait(30)
            assert read_all(client) < times * size
        end = time.monotonic() + 30
        while service.app.in_flight and time.monotonic() < end:
            time.sleep(0.01)
        assert service.app.in_flight == 0  # no response is waiting to be sent


def read_all(client: socket.socket) -> int:
    """Return the number of bytes received until the connection ends."""
    size = 0
    try:
        while part := client.recv(1 << 16):
            size += len(part)
    except ConnectionError:
        pass
    return size


def test_answers_that_are_read_end_nothing(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeoutProtocol, "read_within", 0.1)
    with running(ServiceSettings({"base": folders["base"]})) as service, listening(service) as address:
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(10)
            for _ in range(2):  # two requests on one connection, further apart than the read timeout
                client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert client.recv(10_000).startswith(b"HTTP/1.1 200")
                time.sleep(0.3)


def test_slow_clients(service_process: Process) -> None:
    # Normal clients get responses, however slow this machine is.
    outcome = let_in(service_process, SlowSettings(clients=20, seconds=1.0, timeout=2.0, quickly=20.0), Silent())
    assert outcome.failures == []
    assert outcome.passed
    assert int(outcome.figures["/health answered"]) > 0
    assert int(outcome.figures["requests answered"]) > 0


def test_affected_clients_are_detected() -> None:
    assert Seen([200, 200], [0.01, 0.02], [200]).failures(0.1) == []
    assert Seen([200, 503], [0.01, 0.2], [200, 0]).failures(0.1) == [
        "/health was answered with 503",
        "/health took 0.200 s",
        "a request was answered with 0",
    ]
    assert Seen().failures(1e9) == ["/health took inf s", "no request was sent meanwhile"]


def test_draining_loses_nothing() -> None:
    outcome = drain(DrainSettings(times=1, connections=8), Silent())
    assert outcome.failures == []
    assert outcome.passed
    assert int(outcome.figures["answered"]) > 0


def test_load_beyond_capacity(service_process: Process) -> None:
    # Latency is tested by the campaign; here, some requests must succeed, and others may only be rejected.
    small = OverloadSettings(loads=(5.0,), seconds=1.0, queue=2048, offered=0.1, least=0.05, growth=0.5, slack=math.inf)
    outcome = overload(service_process, small, Silent())
    assert outcome.failures == []
    assert float(outcome.figures["capacity, requests/s"]) > 1
    assert "5x: offered" in outcome.figures


WELL: dict[str, Any] = {"sent": 2000, "statuses": {"200": 100, "429": 1900}, "per_second": 9.9, "waited_p99": 0.5}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({}, None),
        ({"sent": 1799}, "20x: only 18.0x was sent"),
        ({"statuses": {"200": 100, "503": 1}}, "20x: {'200': 100, '503': 1}"),
        ({"per_second": 8.0}, "20x: goodput 80%"),
        ({"waited_p99": 3.0}, "20x: p99 3.00 s, allowed 2.98"),
        ({"waited_p99": math.nan}, "20x: p99 nan s, allowed 2.98"),
    ],
)
def test_failures_under_overload(found: dict[str, Any], message: str | None) -> None:
    """Each violated limit is reported; the capacity is ten requests per second, and the load is twenty times higher."""
    figures, failures = judge(OverloadSettings(seconds=10.0), 20.0, 10.0, WELL | found)
    assert failures == ([] if message is None else [message])
    assert figures["20x: offered"] == f"{(WELL | found)['sent'] / 100:.2f}x"


def test_requests_sent_at_a_rate_are_counted(service_process: Process) -> None:
    target = Target(f"{service_process.address}/embed")
    figures = press_from(2, target, [BODY], connections=8, rate=40.0, seconds=1.0)
    assert 2 <= figures.sent <= 40  # a busy machine may send fewer, and none sends more
    assert sum(figures.statuses.values()) == figures.sent
    assert len(figures.waited) == figures.statuses["200"]


def test_clients_time_out(service_process: Process) -> None:
    figures = asyncio.run(
        press(Target(f"{service_process.address}/embed"), [BODY], connections=2, requests=6, longest=0.0)
    )
    assert (figures.sent, figures.statuses, figures.seconds) == (6, {"timeout": 6}, [])
    assert httpx.get(f"{service_process.address}/health").status_code == 200


def test_figures_of_several_clients_are_joined() -> None:
    one = Figures(3, Counter({"200": 2, "429": 1}), [0.1, 0.2], [0.1, 0.1], 2.0)
    other = Figures(1, Counter({"200": 1}), [0.4], [0.3], 4.0)
    joined = Figures.joined([one, other])
    assert joined == Figures(4, Counter({"200": 3, "429": 1}), [0.1, 0.2, 0.4], [0.1, 0.1, 0.3], 4.0)
    assert joined.summary()["sent"] == 4
    assert joined.summary()["per_second"] == 0.75


def test_soak(service_process: Process) -> None:
    outcome = soak(service_process, SoakSettings(seconds=2.5, every=0.25, connections=4, most_memory=0.5), Silent())
    assert outcome.failures == []
    assert int(outcome.figures["answered"]) > 10
    assert int(outcome.figures["left"]) > 0


def test_modest_clients_and_a_greedy_one(folders: dict[str, str]) -> None:
    """T30 in short: modest clients retain a fair share; without fair sharing they would retain a tenth."""
    with running(ServiceSettings({"base": folders["base"]})) as service, listening(service) as address:
        outcome = compare_shares(address, ShareSettings(rounds=1, seconds=2.0, least=0.25), Silent())
    assert outcome.failures == []
    assert float(outcome.figures["modest with a greedy one"]) > 0
    assert int(outcome.figures["greedy: answered"]) > 0


SOME = SwapSettings(connections=16, texts=40, bodies=60)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return swap_folders(tmp_path_factory.mktemp("swapped"))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_responses_are_not_swapped(precision: PrecisionName, pair: dict[str, str]) -> None:
    service_process = ask_alone(pair, precision, SOME)
    with running(ServiceSettings(pair), precision=precision) as service, listening(service) as address:
        assert {one.description["precision"] for one in service.service.models.served.values()} == {precision}
        tally = compare(address, service_process, 100, SOME, Silent())
        assert tally.failures == []
        assert (tally.done, tally.answered, tally.swapped) == (100, 100, 0)
        # For every route, the vectors of 90 requests and the labels of 10 belong to other texts.
        for model, count in (("base", 90), ("labels", 10)):
            answers = {**service_process.answers, model: service_process.answers[model][::-1]}
            swapped = compare(address, replace(service_process, answers=answers), 100, SOME, Silent())
            assert swapped.swapped == count
            assert f"{precision}: " in swapped.failures[0]


def test_indistinguishable_texts_are_detected(pair: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torture.swaps._WORDS", ["cat"])
    few = replace(SOME, texts=30)
    service_process = ask_alone(pair, "fp32", few)
    assert 5 < len(service_process.texts) < 30  # one text per length
    with running(ServiceSettings(pair)) as service, listening(service) as address:
        tally = compare(address, service_process, 10, few, Silent())
    assert tally.failures == [f"fp32: {len(service_process.texts)} texts of 30 have distinguishable results"]


def test_swaps_are_tried_in_every_precision() -> None:
    assert dict(SwapSettings().requests).keys() == {"fp32", "bf16", "int8"}
    assert sum(count for _, count in SwapSettings().requests) == 100_000


def test_models_that_fail() -> None:
    outcome = let_fail(FaultSettings(rounds=3), Silent())
    assert outcome.failures == []
    assert (outcome.figures["good"], outcome.figures["bad"]) == (30, 15)
