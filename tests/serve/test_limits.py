"""Every limit has its own error response, and no request causes a server error (T14 and T17 in short)."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from torture import bodies
from torture.bodies import BODIES, BodySettings, check, send_generated
from torture.services import Running, running

from cloze.progress import Silent
from cloze.serve.queue import FairShare
from cloze.serve.schemas import client_of
from cloze.serve.settings import Limits, ServiceSettings
from tests.serve.conftest import error_of

RELEASE = threading.Event()


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"texts": "x" * 20_000}, 413, "body_too_large"),
        ({"texts": ["cat"] * 21}, 413, "too_many_inputs"),
        ({"texts": "x" * 5001}, 413, "too_many_characters"),
        ({"texts": "cat", "model": "nobody"}, 404, "unknown_model"),
        ({"texts": 5}, 400, "invalid_body"),
    ],
)
def test_every_limit_has_its_refusal(body: Any, status: int, kind: str, served: Running) -> None:
    assert error_of(served.post("/embed", body))[:2] == (status, kind)


def test_input_limit_equals_that_of_openai(folders: dict[str, str]) -> None:
    """The default limits accept as many inputs of common length as OpenAI's API."""
    with running(ServiceSettings({"base": folders["base"]})) as served:
        sentence = "the cat sat on a mat, and the dog ran to the cat on the mat again and again."
        answer = served.post("/v1/embeddings", {"input": [sentence] * 2048, "model": "base"})
        assert (answer.status_code, len(answer.json()["data"])) == (200, 2048)
        refused = served.post("/v1/embeddings", {"input": ["cat"] * 2049, "model": "base"})
        assert error_of(refused)[:2] == (413, "too_many_inputs")


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("testclient", "testclient"),
        ("a:b", "a:b"),
    ],
)
def test_whose_a_request_is(host: str, client: str) -> None:
    assert client_of({"type": "http", "client": (host, 1234)}) == client
    assert client_of({"type": "http", "client": None}) == ""


def test_one_client_cannot_exhaust_shared_limits() -> None:
    share = FairShare(10)
    for _ in range(10):
        assert share.has_room("greedy", 1)
        share.add("greedy", 1)
    assert not share.has_room("greedy", 1)
    for _ in range(5):
        assert share.has_room("modest", 1)
        share.add("modest", 1)
    assert not share.has_room("modest", 1)
    assert share.has_room("third", 3)
    share.add("greedy", -10)
    assert share.has_room("modest", 5)
    share.add("modest", -5)
    assert (share.total, share._amounts) == (0, {})


def test_tokens_of_one_request_are_limited(folders: dict[str, str]) -> None:
    limits = Limits(queue=50)
    with running(ServiceSettings({"spans": folders["spans"]}, limits=limits)) as served:
        body = {"question": "cat", "context": "cat " * 100}
        assert error_of(served.post("/answer", body))[:2] == (413, "too_many_tokens")


def test_words_for_blanks_are_limited(folders: dict[str, str]) -> None:
    with running(ServiceSettings({"base": folders["base"]}, limits=Limits(proposals=60))) as served:
        assert served.post("/fill", {"texts": ["[MASK] [MASK]", "a [MASK]"], "top": 20}).status_code == 200
        refused = served.post("/fill", {"texts": ["[MASK] [MASK]", "a [MASK]"], "top": 21})
        message = "63 words in one answer, but at most 60 are allowed; send fewer blanks, or ask for a smaller top"
        assert error_of(refused) == (413, "too_many_proposals", message)
        # With joint filling, every result repeats the whole text.
        refused = served.post("/fill", {"texts": "a [MASK]" + " cat" * 20, "top": 5, "joint": True})
        message = "75 words in one answer, but at most 60 are allowed; send fewer blanks, or ask for a smaller top"
        assert error_of(refused) == (413, "too_many_proposals", message)


def test_filling_together_is_limited_by_its_passes(served: Running) -> None:
    assert served.post("/fill", {"texts": "[MASK] " * 5, "top": 5}).status_code == 200
    refused = served.post("/fill", {"texts": "[MASK] " * 5, "top": 50, "joint": True})
    assert error_of(refused)[:2] == (413, "too_many_tokens")


def test_protected_words_are_limited_with_the_texts(folders: dict[str, str]) -> None:
    with running(ServiceSettings({"base": folders["base"]})) as served:
        refused = served.post("/correct", {"texts": " " * 50_000, "protected": ["cat"] * 21})
    message = (
        "21 protected words in 50000 characters are 1050000 comparisons, but at most 1000000 are allowed; "
        "send fewer words or shorter texts"
    )
    assert error_of(refused) == (413, "too_many_protected", message)


def test_words_without_tokens_are_counted(folders: dict[str, str]) -> None:
    with running(ServiceSettings({"tags": folders["tags"]}, limits=Limits(queue=500))) as served:
        assert error_of(served.post("/tag", {"texts": [["\u00ad"] * 600]}))[:2] == (413, "too_many_tokens")
        answer = served.post("/tag", {"texts": [["\u00ad"] * 20, ["cats", "the"]]}).json()
    assert answer["usage"]["tokens"] == (20 + 2) + (3 + 2)
    assert [len(one["words"]) for one in answer["results"]] == [20, 2]


def test_chunked_bodies_are_counted_as_they_come(served: Running) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b'{"texts": "'
        for _ in range(10**6):
            yield b"x" * 1000
        raise AssertionError("all of it was read")

    answer = served.run(lambda client: client.post("/embed", content=endless()))
    assert error_of(answer)[:2] == (413, "body_too_large")


def test_slow_bodies_are_given_up(folders: dict[str, str]) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(5)

    limits = Limits(timeout=0.2)
    with running(ServiceSettings({"base": folders["base"]}, limits=limits)) as served:
        answer = served.run(lambda client: client.post("/embed", content=slow()))
        assert error_of(answer)[:2] == (408, "slow_body")


def test_bodies_that_are_held_are_bounded_together(folders: dict[str, str]) -> None:
    limits = Limits(body=1000)
    started = asyncio.Event()

    async def half_a_body() -> AsyncIterator[bytes]:
        yield b"x" * 900
        await asyncio.wait_for(started.wait(), 10)

    async def send_requests(client: httpx.AsyncClient) -> list[int]:
        held = [asyncio.ensure_future(client.post("/embed", content=half_a_body())) for _ in range(40)]
        await asyncio.sleep(0.3)
        refused = [one.result().status_code for one in held if one.done()]
        started.set()
        return [*refused, *(one.status_code for one in await asyncio.gather(*held))]

    with running(ServiceSettings({"base": folders["base"]}, limits=limits)) as served:
        found = served.run(send_requests)
        # 32 bodies of 1000 bytes are allowed, which is 35 of 900; each rejection is counted twice
        assert found.count(429) == 2 * 5
        assert served.post("/embed", {"texts": "cat"}).status_code == 200


def test_a_deadline_is_kept_and_the_work_dropped(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(timeout=0.3)
    with running(ServiceSettings({"base": folders["base"]}, limits=limits)) as served:
        batcher = served.service.models.batchers[0]
        block_forward(batcher, monkeypatch)

        async def send_requests(client: httpx.AsyncClient) -> list[httpx.Response]:
            return await asyncio.gather(*(client.post("/embed", json={"texts": "cat"}) for _ in range(5)))

        answers = served.run(send_requests)
        assert {error_of(answer)[:2] for answer in answers} == {(408, "deadline")}
        assert batcher.queue.tokens == 0
        RELEASE.set()
        assert served.service.metrics.registry.get_sample_value("cloze_dropped_total", {"why": "deadline"}) == 5


def test_a_full_queue_gives_a_retry_time(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(queue=40, timeout=2)
    with running(ServiceSettings({"base": folders["base"]}, limits=limits)) as served:
        block_forward(served.service.models.batchers[0], monkeypatch)

        async def send_requests(client: httpx.AsyncClient) -> list[httpx.Response]:
            requests = [asyncio.ensure_future(client.post("/embed", json={"texts": "cat sat on"})) for _ in range(40)]
            await asyncio.sleep(0.2)
            RELEASE.set()
            return await asyncio.gather(*requests)

        answers = served.run(send_requests)
    refused = [answer for answer in answers if answer.status_code != 200]
    assert 20 <= len(refused) < 40  # one batch is being computed, and another fills the queue
    assert {error_of(answer)[:2] for answer in refused} == {(429, "overloaded")}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


def test_patience_ends_before_a_body_is_read(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(patience=1e-6)
    with running(ServiceSettings({"base": folders["base"]}, limits=limits)) as served:
        batcher = served.service.models.batchers[0]
        block_forward(batcher, monkeypatch)

        async def send_requests(client: httpx.AsyncClient) -> tuple[list[httpx.Response], httpx.Response]:
            requests = []
            for waiting in (0, 3):  # one request is being computed, and one is waiting
                requests.append(asyncio.ensure_future(client.post("/embed", json={"texts": "cat"})))
                async with asyncio.timeout(10):
                    while (batcher.queue._number, batcher.queue.tokens) != (len(requests), waiting):
                        await asyncio.sleep(0.01)
            refused = await client.post("/embed", content=b"no JSON")
            RELEASE.set()
            return await asyncio.gather(*requests), refused

        answers, refused = served.run(send_requests)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert error_of(refused) == (
        429,
        "overloaded",
        "3 tokens wait for model 'base', but at most 0 are allowed; try again in 1 s",
    )


def test_too_many_concurrent_requests(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(connections=3)
    with running(ServiceSettings({"base": folders["base"]}, limits=limits)) as served:
        block_forward(served.service.models.batchers[0], monkeypatch)

        async def send_requests(client: httpx.AsyncClient) -> list[httpx.Response]:
            requests = [asyncio.ensure_future(client.post("/embed", json={"texts": "cat"})) for _ in range(5)]
            await asyncio.sleep(0.2)
            assert (await client.get("/health")).status_code == 200
            RELEASE.set()
            return await asyncio.gather(*requests)

        statuses = [answer.status_code for answer in served.run(send_requests)]
    assert sorted(statuses) == [200, 200, 200, 429, 429]


def test_requests_of_disconnected_clients_are_not_computed(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(ServiceSettings({"base": folders["base"]})) as served:
        batcher = served.service.models.batchers[0]
        block_forward(batcher, monkeypatch)

        async def send_requests() -> None:
            body = json.dumps({"texts": "cat sat on a mat"}).encode()
            sent, left = [], asyncio.Event()
            parts = iter([{"type": "http.request", "body": body, "more_body": False}])

            async def receive() -> Any:
                for part in parts:
                    return part
                await left.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                sent.append(message)

            headers = [(b"host", b"localhost")]
            scope = {"type": "http", "method": "POST", "path": "/embed", "headers": headers, "query_string": b""}
            scope |= {"http_version": "1.1", "scheme": "http", "server": ("localhost", 80), "root_path": ""}
            # The first is being computed and cannot be cancelled; the second waits.
            requests = [asyncio.ensure_future(served.app(dict(scope), receive, send))]
            await asyncio.sleep(0.1)
            parts = iter([{"type": "http.request", "body": body, "more_body": False}])
            requests.append(asyncio.ensure_future(served.app(dict(scope), receive, send)))
            await asyncio.sleep(0.1)
            assert batcher.queue.tokens == 7
            left.set()
            await asyncio.wait_for(asyncio.gather(*requests), 5)
            assert batcher.queue.tokens == 0
            assert sent[0]["status"] == 499

        asyncio.run(send_requests())
        RELEASE.set()


def block_forward(batcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block every batch until ``RELEASE`` is set."""
    compute = batcher._compute_batch
    RELEASE.clear()

    def waiting(*arguments: Any) -> Any:
        RELEASE.wait(10)
        return compute(*arguments)

    monkeypatch.setattr(batcher, "_compute_batch", waiting)


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/encode", "/tag"])
def test_odd_bodies_are_refused_or_answered(path: str, served: Running) -> None:
    async def send_requests(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.post(path, content=body) for body in BODIES]

    for body, answer in zip(BODIES, served.run(send_requests), strict=True):
        assert answer.status_code < 500, body[:80]
        answer.json()  # every response is JSON
        assert len(answer.content) < 5000 or answer.status_code == 200


def test_generated_requests_cause_no_fault(served: Running) -> None:
    failures: list[str] = []
    statuses = send_generated(served, BodySettings(200, ("/embed", "/v1/embeddings")), failures, Silent())
    assert failures == []
    assert sum(statuses.values()) >= 200
    assert statuses[200] > 5
    assert statuses[400] > 30


def test_the_campaign_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODIES", BODIES[:2])
    outcome = bodies.run(BodySettings(20, ("/embed", "/health", "/ready")), Silent())
    assert outcome.passed
    assert int(outcome.figures["odd bodies"]) >= 2 * 10  # bodies for each route with a request body
    assert int(outcome.figures["generated"]) >= 20  # reached although two of the routes have no parameters to vary


def test_a_fault_would_be_noticed() -> None:
    failures: list[str] = []
    check(httpx.Response(503, text="broken"), "POST /x", failures)
    check(httpx.Response(200, content=b"[NaN]", headers={"content-type": "application/json"}), "POST /y", failures)
    check(httpx.Response(200, json=[1]), "POST /z", failures)
    assert failures == ["POST /x: 503 broken", "POST /y: no JSON (NaN is not JSON)"]
