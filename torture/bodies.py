"""T14: request bodies known to break parsers, and requests generated from the service's OpenAPI description.

schemathesis generates the requests in this process: half conform to the description, half violate it. No response may
have a status of 500 or above, and every JSON response must be valid JSON.
"""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy
from schemathesis import GenerationMode

from cloze.options import PrecisionName
from cloze.progress import Progress
from torture.campaign import Outcome
from torture.services import Running, made_service

_MOST_FAILURES = 10
_DEEP = 20_000

# Difficult JSON values, each sent as the whole body, as a text, and as a key.
_VALUES = [
    *(
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\u0000"',
        b'"\\ufffe\\uffff"',
        b'"\xed\xa0\x80"',
        b'"\xff\xfe"',
        b'"\xc0\x80"',
    ),
    *(b"NaN", b"-Infinity", b"1e999", b"-0", b"0.1e-9999", b"9" * 5000, b"-" + b"9" * 400, b"1e400", b"0x10", b"01"),
    *(
        b"+1",
        b"null",
        b"true",
        b"[]",
        b"{}",
        b'""',
        b"'cat'",
        b'"\t"',
        b'"\n"',
        b'"unterminated',
        b'"\\x41"',
        b"[[[[]]]]",
    ),
    *(b"[null]", b'[1, "a"]', b'["a", 1]', b'["a", ["b"]]', b"[[1]]", b"[-1]", b"[99999999999999999999]", b"[1.5]"),
    *(b"[true]", '"e\u0301\u200d\u202e\U0001f468\u200d\U0001f469"'.encode(), b'"' + b"a" * 5000 + b'"'),
    *(b"[" * _DEEP + b"]" * _DEEP, b'{"a":' * _DEEP + b"1" + b"}" * _DEEP),
    *(b'"[CLS] [SEP] [PAD] [MASK] [UNK]"', b'"' + b"[MASK] " * 200 + b'"'),
]
_KEYS = [
    *("texts", "input", "model", "layer", "pooling", "pairs", "top", "id", "is_tokenized", "dimensions", "long_texts"),
    *("joint", "threshold", "protected", "query", "where", "mode", "exact", "documents", "top_n"),
]


def _bodies() -> Iterator[bytes]:
    yield from (b"", b" ", b"\xef\xbb\xbf{}", b"\x00", b"{", b'{"texts"', b'{"texts": "a",}', b"texts=a", b"\xff" * 100)
    yield from _VALUES
    for value in _VALUES:
        yield b'{"texts": ' + value + b', "input": ' + value + b"}"
        yield b'{"query": ' + value + b', "where": [' + value + b"]}"
        yield b'{"query": ' + value + b', "documents": [' + value + b"]}"
        yield b'{"texts": [' + value + b'], "input": [' + value + b"]}"
    for key in _KEYS:
        for value in _VALUES:
            yield b'{"texts": "cat", "input": "cat", "' + key.encode() + b'": ' + value + b"}"
    yield b'{"texts": "a", "texts": "b", "input": "a", "input": "b"}'  # duplicate keys
    yield b'{"\\ud800": 1, "texts": "a", "input": "a"}'
    yield json.dumps({"texts": "a", **{f"key{number}": 1 for number in range(500)}}).encode()


BODIES: Sequence[bytes] = list(_bodies())


@dataclass(frozen=True)
class BodySettings:
    """The number of generated requests, the routes (all by default), and the precisions of the services."""

    cases: int = 50_000
    paths: tuple[str, ...] = ()
    precisions: tuple[PrecisionName, ...] = ("int8", "fp32")


def run(settings: BodySettings, progress: Progress) -> Outcome:
    """Send the fixed bodies and the generated requests to services with a model of every kind."""
    failures: list[str] = []
    odd, made = 0, Counter[int]()
    share = replace(settings, cases=settings.cases // len(settings.precisions))
    for precision in settings.precisions:
        with made_service(precision=precision) as service:
            odd += asyncio.run(_send_odd(service, service.post_paths(), failures))
            made.update(send_generated(service, share, failures, progress))
    figures: dict[str, str | int | float] = {
        "precisions": ", ".join(settings.precisions),
        "odd bodies": odd,
        "generated": sum(made.values()),
        "answered": made.get(200, 0),
        "refused": sum(count for status, count in made.items() if 400 <= status < 500),
        "5xx": sum(count for status, count in made.items() if status >= 500),
    }
    return Outcome(not failures, figures, failures[:_MOST_FAILURES])


async def _send_odd(service: Running, paths: list[str], failures: list[str]) -> int:
    async with service.client() as client:
        for path in paths:
            for body in BODIES:
                check(await client.post(path, content=body), f"{path} {body[:60]!r}", failures)
    return len(paths) * len(BODIES)


def check(answer: httpx.Response, what: str, failures: list[str]) -> None:
    """Add a failure for every response with status 500 or above or with invalid JSON."""
    if answer.status_code >= 500:
        failures.append(f"{what}: {answer.status_code} {answer.text[:80]}")
    elif answer.headers.get("content-type") == "application/json":
        try:
            json.loads(answer.content, parse_constant=_refuse)
        except ValueError as error:
            failures.append(f"{what}: no JSON ({error})")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def send_generated(service: Running, settings: BodySettings, failures: list[str], progress: Progress) -> dict[int, int]:
    """Send generated requests, at least as many as configured; return the number of responses per status.

    Routes are tested in turn. A route without parameters has only one possible request; further rounds make up for it.
    """
    schema = schemathesis.openapi.from_dict(service.get("/openapi.json").json())
    found: list[Any] = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]
    operations = [one for one in found if one.path in (settings.paths or [one.path])]
    strategies = [
        operation.as_strategy(generation_mode=mode)
        for operation in operations
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        # A route without parameters has no invalid requests.
        if mode is GenerationMode.POSITIVE or operation.method.upper() == "POST"
    ]
    statuses: dict[int, int] = {}
    turns, sent = itertools.count(), 0
    with service.blocking() as ask:
        while sent < settings.cases:
            turn, share = next(turns), max(1, (settings.cases - sent) // len(strategies))
            for strategy in strategies:
                _try_cases(strategy, share, turn, ask, statuses, failures)
                sent = sum(statuses.values())
                progress.advance("T14: requests to all routes", min(sent, settings.cases), settings.cases)
    return statuses


def _try_cases(
    strategy: SearchStrategy[Any], count: int, turn: int, ask: Any, statuses: dict[int, int], failures: list[str]
) -> None:
    @seed(turn)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def one(case: Any) -> None:
        words = case.as_transport_kwargs(base_url="http://localhost")
        content = words.get("data")
        if content is None:
            content = b"" if "json" not in words else json.dumps(words["json"]).encode()
        headers = {str(name): str(value) for name, value in (words.get("headers") or {}).items()}
        try:
            answer = ask(words["method"], words["url"], content=content, headers=headers, params=words.get("params"))
        except (httpx.InvalidURL, UnicodeError, httpx.LocalProtocolError):
            return  # every request that could be generated was sent
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        check(answer, f"{words['method']} {words['url'][:60]} {str(content)[:80]}", failures)

    one()
