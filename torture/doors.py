"""T21: every route with no key, wrong ones and the right one, and under the hosts and origins of others."""

import base64
import itertools
from dataclasses import dataclass

from cloze.progress import Progress
from torture.campaign import Outcome
from torture.services import Running, made_service

KEY = "the right key of the service"
_OPEN = {"/health"}
_MOST_FAILURES = 10


@dataclass(frozen=True)
class DoorSettings:
    """The key of the service."""

    key: str = KEY


def run(settings: DoorSettings, progress: Progress) -> Outcome:
    """Try every door."""
    with made_service(key=settings.key) as service:
        tried, failures = every_door(service, settings.key)
    progress.say(f"T21: {tried} doors")
    return Outcome(not failures, {"tried": tried, "open that should not be": len(failures)}, failures[:_MOST_FAILURES])


def every_door(service: Running, key: str) -> tuple[int, list[str]]:
    """Ask every route in every way; how many were tried, and what was answered otherwise than it should be."""
    paths = service.get("/openapi.json", headers={"authorization": f"Bearer {key}"}).json()["paths"]
    routes = [(verb.upper(), path.replace("{name}", "base")) for path, verbs in paths.items() for verb in verbs]
    routes += [("GET", path) for path in ("/", "/docs", "/openapi.json", "/static/page.js", "/nothing")]
    # Every method: what is not there must not tell that it is not.
    routes += [(verb, "/embed") for verb in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH")]
    tried, failures = 0, []
    with service.blocking() as ask:
        for (verb, path), (told, headers, status) in itertools.product(routes, _ways(key)):
            tried += 1
            answer = ask(verb, path, headers=headers)
            # /health is open to all; a balancer may ask it by any name.
            expected = None if path in _OPEN or status == 0 else status
            if expected is None and path in _OPEN and answer.status_code != 200:
                failures.append(f"{verb} {path} with {told}: {answer.status_code}, and it should be open")
            if expected is None and answer.status_code in (401, 403, 421):
                failures.append(f"{verb} {path} with {told}: {answer.status_code}, and it should let in")
            if expected is not None and answer.status_code != expected:
                failures.append(f"{verb} {path} with {told}: {answer.status_code}, and not {expected}")
    return tried, failures


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
