"""Bodies of requests -> checked values: bounded in bytes and time while they come, then parsed in one step.

The raw bytes are validated as they are. A body that was first decoded and then validated could hold half a character
(a lone surrogate), which later fails where it is written.
"""

import asyncio
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from cloze.errors import did_you_mean
from cloze.serve.errors import Invalid, Overloaded, TooLarge, TooSlow
from cloze.serve.settings import Limits

Form = TypeVar("Form", bound=BaseModel)

# Mistakes of one body that are looked at. Lists end at their first (see forms.py), so that only keys can be more.
MOST_TOLD = 100


class Bodies:
    """Reads bodies; all that are held at one time are bounded as well."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._held = limits, 0

    async def read(self, request: Request, form: type[Form]) -> Form:
        """The body as a form, or a refusal."""
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self._limits.body:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._limits.timeout):
                body = await self._gather(request)
        except TimeoutError:
            raise TooSlow(f"the body did not arrive within {self._limits.timeout:g} s", "slow_body") from None
        return check(body, form)

    async def _gather(self, request: Request) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async for part in request.stream():
                size += len(part)
                self._held += len(part)
                if size > self._limits.body:
                    raise self._too_large()
                if self._held > self._limits.held:
                    raise Overloaded("too many bodies are on their way; try again in 1 s", retry_after=1)
                parts.append(part)
            return b"".join(parts)
        finally:
            self._held -= size

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body has more than {self._limits.body} bytes; send less at a time", "body_too_large")


def check(body: bytes, form: type[Form]) -> Form:
    """Parse and validate; the message names the first thing that is wrong, and nothing of the body is echoed."""
    try:
        return form.model_validate_json(body)
    except ValidationError as error:
        raise Invalid(explain(error, form), "invalid_body") from None


def explain(error: ValidationError, form: type[BaseModel]) -> str:
    """One line for what is wrong."""
    if (count := error.error_count()) > MOST_TOLD:  # to ask for the first would make a dictionary of each
        return f"the body: {count} mistakes, most of them unknown keys; known are {', '.join(form.model_fields)}"
    first = error.errors(include_input=False, include_url=False)[0]
    if not first["loc"] or first["type"] == "json_invalid":
        return f"the body: {first['msg']}"[:300]
    place = ".".join(str(part) for part in first["loc"])[:80]
    if first["type"] == "extra_forbidden":
        return f"unknown key {place!r}{did_you_mean(place, form.model_fields)}"
    if first["type"] == "missing":
        return f"{place} is missing"
    return f"{place}: {first['msg']}"[:300]
