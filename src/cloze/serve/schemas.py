"""The schema of each route's body, and reading a body: bounded in bytes and time, then validated in one step.

``/docs`` shows the schemas. The raw bytes are validated without decoding them first: a decoded string could hold half a
character (a lone surrogate), which would fail later, when it is written. ``client_of`` returns whose request it is, for
the limits that clients share.
"""

import asyncio
import ipaddress
from typing import Annotated, Literal, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.types import Scope

from cloze.errors import did_you_mean
from cloze.options import LongTexts
from cloze.serve.errors import DeadlineError, InvalidRequestError, OverloadedError, TooLargeError
from cloze.serve.queue import FairShare
from cloze.serve.settings import Limits

# ``fail_fast``: validation stops at the first bad item of a list, since a body has room for a million of them.
Strings = Annotated[list[str], Field(fail_fast=True)]
Ids = Annotated[list[int], Field(fail_fast=True)]

Name = Annotated[str | None, Field(default=None, max_length=200, description="A model or an adapter; see /v1/models.")]
Texts = Annotated[str | Strings, Field(description="One text, or several.")]
Top = Annotated[int, Field(ge=1, le=100)]
Layer = Annotated[int, Field(ge=-1000, le=1000)]
# The states of all of them are in memory at once; a large BERT has 25, embeddings included.
Layers = Annotated[list[Layer], Field(max_length=32, fail_fast=True)]


class Form(BaseModel):
    """Base of our own routes' bodies: unknown keys are rejected, and types are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: Name


class EmbedForm(Form):
    """Texts, or pairs of texts, to be turned into vectors."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["a ship at sea", "a boat"]}]})

    texts: Texts
    pairs: Texts | None = Field(default=None, description="A second text for each.")
    pooling: str | None = Field(
        default=None, max_length=20, description="cls, mean, max, mean_max, mean_words or pooler."
    )
    layer: Layer | Layers = Field(default=-1, description="Of several, the mean.")
    long_texts: LongTexts = Field(default="cut", description="What becomes of texts beyond the model's length.")


class RerankForm(Form):
    """A query, and texts to be ordered by how near they are to it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"query": "a ship at sea", "texts": ["a boat", "the stock market"]}]}
    )

    query: str
    texts: Strings
    top: Annotated[int | None, Field(ge=1)] = None


class FillForm(Form):
    """Texts with [MASK] where words are to be filled in."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": "He shook his [MASK]."}]})

    texts: Texts
    top: Top = 5
    joint: bool = Field(default=False, description="Fill the blanks of a text together, by words that fit each other.")


class ClassifyForm(Form):
    """Texts, or pairs of texts, to be labelled or rated."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["It was the best of times."]}]})

    texts: Texts
    pairs: Texts | None = Field(default=None, description="A second text for each.")


class TagForm(Form):
    """Texts, or sentences as lists of words, to be tagged."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["Mr. Darcy left London."]}]})

    texts: str | Strings | Annotated[list[Strings], Field(fail_fast=True)]


class AnswerForm(Form):
    """A question, and a text in which the answer may stand."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"question": "Who left?", "context": "Mr. Darcy left London."}]}
    )

    question: str
    context: str
    top: Top = 1


class ChooseForm(Form):
    """A prompt, and options of which one fits."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "He opened the door", "options": ["and went in.", "of green."]}]}
    )

    prompt: str
    options: Annotated[list[str], Field(min_length=2, fail_fast=True)]


class CorrectForm(Form):
    """Texts to be corrected."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["He opened teh door."]}]})

    texts: Texts
    threshold: Annotated[float | None, Field(ge=0, le=1)] = Field(
        default=None, description="How sure a correction must be; left out, as it suits the model."
    )
    protected: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=100, fail_fast=True)] = Field(
        default=[], description="Words that are never changed."
    )


class ScoreForm(Form):
    """Texts of which is asked how likely they are: each token is masked in turn."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["He shook his head."]}]})

    texts: Texts
    tokens: bool = Field(default=False, description="Also return the log-probability of every token.")


class FollowsForm(Form):
    """Texts, and for each a second one that may follow it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"texts": ["He opened the door."], "pairs": ["The room was empty."]}]}
    )

    texts: Texts
    pairs: Texts


class TokenizeForm(Form):
    """Texts, or pairs of texts, to be shown as the model reads them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["unbelievable"]}]})

    texts: Texts
    pairs: Texts | None = Field(default=None, description="A second text for each.")


class OpenAIForm(BaseModel):
    """OpenAI's request for embeddings. Keys that mean nothing here are let pass, as its clients expect."""

    model_config = ConfigDict(
        extra="ignore", strict=True, json_schema_extra={"examples": [{"model": None, "input": "a ship at sea"}]}
    )

    input: str | Strings | Ids | Annotated[list[Ids], Field(fail_fast=True)] = Field(
        description="Texts, or texts as ids of tokens."
    )
    model: Name
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int | None, Field(ge=1)] = None


class EncodeForm(BaseModel):
    """The request of bert-as-service's HTTP server."""

    model_config = ConfigDict(
        extra="ignore", strict=True, json_schema_extra={"examples": [{"id": 1, "texts": ["hello world"]}]}
    )

    id: int | Annotated[str, Field(max_length=1000)] | None = Field(default=None, description="Given back as it is.")
    texts: Strings | Annotated[list[Strings], Field(fail_fast=True)]
    is_tokenized: bool = False
    model: Name


AnyForm = TypeVar("AnyForm", bound=BaseModel)

# Maximum mistakes of one body that are reported singly. Lists stop at their first (``fail_fast`` above), so that only
# unknown keys can exceed it.
MOST_REPORTED = 100


def client_of(scope: Scope) -> str:
    """Return whose request this is: the address it comes from; of IPv6, the network, since a host has all of its /64.

    Behind a balancer on this host, or on one that FORWARDED_ALLOW_IPS names, uvicorn puts the address that
    X-Forwarded-For tells in its place.
    """
    host = str((scope.get("client") or ("",))[0])
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


class Bodies:
    """Reads request bodies; the total size of those in memory is bounded as well, and shared fairly by clients."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._held = limits, FairShare(limits.held)

    async def read(self, request: Request, form: type[AnyForm]) -> AnyForm:
        """Read and validate the body of a request.

        Raises:
            ServiceError: The body is too large, too slow, or not valid.
        """
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self._limits.body:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._limits.timeout):
                body = await self._gather(request)
        except TimeoutError:
            raise DeadlineError(f"the body did not arrive within {self._limits.timeout:g} s", "slow_body") from None
        return check(body, form)

    async def _gather(self, request: Request) -> bytes:
        parts: list[bytes] = []
        size, client = 0, client_of(request.scope)
        try:
            async for part in request.stream():
                if size + len(part) > self._limits.body:
                    raise self._too_large()
                if not self._held.has_room(client, len(part)):
                    raise OverloadedError("too many bodies are on their way; try again in 1 s", retry_after=1)
                size += len(part)
                self._held.add(client, len(part))
                parts.append(part)
            return b"".join(parts)
        finally:
            self._held.add(client, -size)

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"the body has more than {self._limits.body} bytes; send less at a time", "body_too_large")


def check(body: bytes, form: type[AnyForm]) -> AnyForm:
    """Parse and validate a body. The error message names the first mistake and does not echo the body."""
    try:
        return form.model_validate_json(body)
    except ValidationError as error:
        raise InvalidRequestError(explain(error, form), "invalid_body") from None


def explain(error: ValidationError, form: type[BaseModel]) -> str:
    """Return one line that describes the first mistake."""
    if (count := error.error_count()) > MOST_REPORTED:  # ``errors()`` would make a dictionary of each
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
