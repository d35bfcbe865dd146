"""T21: every route with no key, wrong ones and the right one, and under the hosts and origins of others.

The routes are those that the app itself has, pages and their files included, and not those that it tells of: what was
added yesterday is tried without anybody's having thought of it.
"""

import base64
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.routing import Mount, Route, compile_path

from cloze.progress import Progress
from cloze.serve.pages import INSPECT
from torture.campaign import Outcome
from torture.services import Running, made_service

KEY = "the right key of the service"
_OPEN = {"/health"}
_MOST_FAILURES = 10
Door = tuple[str, str]  # method, path


@dataclass(frozen=True)
class DoorSettings:
    """The key of the service."""

    key: str = KEY


def run(settings: DoorSettings, progress: Progress) -> Outcome:
    """Try every door."""
    with made_service(key=settings.key) as service:
        routes = set(every_route(app_routes(service)))
        tried, failures = every_door(service, settings.key)
    progress.say(f"T21: {tried} doors")
    figures: dict[str, str | int | float] = {
        "routes": len(routes),
        "tried": tried,
        "open that should not be": len(failures),
    }
    return Outcome(not failures, figures, failures[:_MOST_FAILURES])


def app_routes(service: Running) -> list[Any]:
    """What stands behind the gate."""
    routes: list[Any] = service.app._app.routes  # type: ignore[attr-defined]
    return routes


def every_route(routes: Iterable[Any], before: str = "") -> Iterator[Door]:
    """Methods and paths of all that answers, below included routers and mounts too; names in paths are in braces."""
    for route in routes:
        if (included := getattr(route, "original_router", None)) is not None:  # as newer FastAPI keeps them
            yield from every_route(included.routes, before + route.include_context.prefix)
        elif isinstance(route, Mount) and route.routes:
            yield from every_route(route.routes, before + route.path)
        elif isinstance(route, Mount):  # of an app that tells of no routes, such as files
            yield "GET", f"{before}{route.path}/{{path:path}}"
        elif isinstance(route, Route):
            yield from ((verb, before + route.path) for verb in sorted(route.methods or {"GET"}))
        else:
            raise TypeError(f"{type(route).__name__}: how to try a route of this kind is not known; teach every_route")


def doors(routes: Iterable[Door], seen: str) -> list[Door]:
    """The same with something in place of the names; ``seen`` is that of a text whose attention was looked at."""
    known = {f"{INSPECT}/weights/{{name}}/{{layer}}": f"{INSPECT}/weights/{seen}/0"}
    return [(verb, known.get(path) or re.sub(r"\{.*?\}", "base", path)) for verb, path in routes]


def untried(routes: Iterable[Door], tried: Iterable[Door]) -> list[Door]:
    """The routes that nothing of what was tried has led to."""
    asked = list(tried)
    return [
        (verb, path)
        for verb, path in routes
        if not any(one == verb and compile_path(path)[0].fullmatch(place) for one, place in asked)
    ]


def every_door(service: Running, key: str) -> tuple[int, list[str]]:
    """Ask every route in every way; how many were tried, and what was answered otherwise than it should be."""
    right = {"authorization": f"Bearer {key}"}
    seen = service.post(f"{INSPECT}/view", {"text": "cat", "model": "base"}, headers=right).json()["id"]
    routes = list(every_route(app_routes(service)))
    there = doors(routes, seen)
    failures = [f"{verb} {path}: not tried" for verb, path in untried(routes, there)]
    # What is not there must not tell that it is not, by any method.
    others = ("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH")
    nowhere = [("GET", "/nothing"), *((verb, "/embed") for verb in others)]
    tried = 0
    with service.blocking() as ask:
        for (verb, path), (told, headers, status) in itertools.product([*there, *nowhere], _ways(key)):
            tried += 1
            found = ask(verb, path, headers=headers).status_code
            if (wrong := _wrong(path, found, status, is_there=(verb, path) in there)) is not None:
                failures.append(f"{verb} {path} with {told}: {found}, and {wrong}")
    return tried, failures


def _wrong(path: str, found: int, expected: int, *, is_there: bool) -> str | None:
    """What is wrong with an answer, if anything; 0 is expected of what should be let in."""
    if path in _OPEN:  # to all; a balancer may ask it by any name
        return None if found == 200 else "it should be open"
    if expected:
        return None if found == expected else f"not {expected}"
    if found in (401, 403, 421):
        return "it should let in"
    return "there should be something" if is_there and found in (404, 405) else None


def _ways(key: str) -> list[tuple[str, dict[str, str], int]]:
    """Headers, and the status that they should meet; 0 where they should be let in."""
    basic = base64.b64encode(f"me:{key}".encode()).decode()
    right = {"authorization": f"Bearer {key}"}
    return [
        ("the right key", right, 0),
        ("the right password", {"authorization": f"Basic {basic}"}, 0),
        ("no key", {}, 401),
        ("an empty key", {"authorization": "Bearer "}, 401),
        ("half a key", {"authorization": f"Bearer {key[:-1]}"}, 401),
        ("a longer key", {"authorization": f"Bearer {key}x"}, 401),
        ("another case", {"authorization": f"Bearer {key.swapcase()}"}, 401),
        ("another scheme", {"authorization": f"Digest {key}"}, 401),
        ("the key alone", {"authorization": key}, 401),
        ("broken Basic", {"authorization": "Basic ###"}, 401),
        ("the key as user", {"authorization": "Basic " + base64.b64encode(f"{key}:".encode()).decode()}, 401),
        ("the key elsewhere", {"x-api-key": key, "cookie": f"key={key}"}, 401),
        ("another host", {**right, "host": "evil.example"}, 421),
        ("a host that begins like ours", {**right, "host": "127.0.0.1.evil.example"}, 421),
        ("another origin", {**right, "origin": "http://evil.example"}, 403),
        ("no origin that could be named", {**right, "origin": "null"}, 403),
    ]
