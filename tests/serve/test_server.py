"""The real thing, in a process of its own: it starts, is pressed, and ends without losing an answer."""

import asyncio
import json
import math
import socket
from collections.abc import Iterator

import httpx
import pytest
from torture.drains import DrainSettings
from torture.drains import run as drain
from torture.failing_models import FaultSettings
from torture.failing_models import run as let_fail
from torture.load import Target, press
from torture.overload import OverloadSettings
from torture.overload import press as overload
from torture.services import Process, process
from torture.slow_clients import SlowSettings, let_in
from torture.soak import SoakSettings
from torture.soak import watch as soak
from torture.swaps import SwapSettings
from torture.swaps import compare as ask_in_company

from cloze.progress import Silent

BODY = json.dumps({"texts": "the cat sat"}).encode()


@pytest.fixture(scope="module")
def alone(folders: dict[str, str]) -> Iterator[Process]:
    flags = ("--threads", "1", "--timeout", "2", "--body", "100000", "--queue", "2048")
    with process([folders["base"]], *flags) as found:
        yield found


def test_it_answers_and_tells_its_figures(alone: Process) -> None:
    figures = asyncio.run(press(Target(f"{alone.address}/embed"), [BODY], connections=4, requests=40))
    assert figures.statuses == {"200": 40}
    told = httpx.get(f"{alone.address}/metrics").text
    assert 'cloze_requests_total{route="/embed",status="200"} 40.0' in told
    for name in ("cloze_queue_seconds", "cloze_tokenization_seconds", "cloze_inference_seconds", "process_open_fds"):
        assert name in told


def test_headers_without_an_end(alone: Process) -> None:
    port = int(alone.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(10)
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000)
        assert client.recv(100).startswith(b"HTTP/1.1 400")


def test_slow_clients(alone: Process) -> None:
    outcome = let_in(alone, SlowSettings(clients=20, seconds=1.0, timeout=2.0), Silent())
    assert outcome.failures == []
    assert outcome.passed


def test_draining_loses_nothing() -> None:
    outcome = drain(DrainSettings(times=1, connections=8), Silent())
    assert outcome.failures == []
    assert outcome.passed
    assert int(outcome.figures["answered"]) > 0


def test_load_beyond_capacity(alone: Process) -> None:
    # No test asserts a time: how soon the answers come, and how many there are, is for the campaign.
    small = OverloadSettings(loads=(5.0,), seconds=1.0, queue=2048, least=0.0, growth=0.5, slack=math.inf)
    outcome = overload(alone, small, Silent())
    assert outcome.failures == []
    assert float(outcome.figures["capacity, requests/s"]) > 1


def test_soak(alone: Process) -> None:
    outcome = soak(alone, SoakSettings(seconds=2.5, every=0.25, connections=4, most_memory=0.5), Silent())
    assert outcome.failures == []
    assert int(outcome.figures["answered"]) > 10
    assert int(outcome.figures["left"]) > 0


def test_nobody_gets_anothers_answer(alone: Process, folders: dict[str, str]) -> None:
    some = SwapSettings(requests=300, connections=16, texts=60, bodies=100)
    outcome = ask_in_company(alone, folders["base"], some, Silent())
    assert outcome.failures == []
    assert (outcome.passed, outcome.figures["requests"], outcome.figures["swapped"]) == (True, 300, 0)


def test_models_that_fail() -> None:
    outcome = let_fail(FaultSettings(rounds=3), Silent())
    assert outcome.failures == []
    assert (outcome.figures["good"], outcome.figures["bad"]) == (30, 15)
