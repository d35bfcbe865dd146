"""The schema of each route's body, and the reading of bodies: bounded in bytes and time, then validated in one step.

``/docs`` shows the schemas. The raw bytes are validated without decoding them first, because a decoded string could
contain a lone surrogate (half a character), which would fail later in the response. ``client_of`` identifies the client
of a request, for the limits that clients share.
"""

import asyncio
import ipaddress
from typing import Annotated, Literal, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.types import Scope

from cloze.errors import did_you_mean
from cloze.options import LongTexts, SearchMode
from cloze.serve.outcomes import DeadlineError, InvalidRequestError, OverloadedError, TooLargeError
from cloze.serve.queue import FairShare
from cloze.serve.settings import Limits

# ``fail_fast``: validation stops at the first bad item of a list, because a body may contain a million of them.
Strings = Annotated[list[str], Field(fail_fast=True)]
Ids = Annotated[list[int], Field(fail_fast=True)]

Name = Annotated[
    str | None, Field(default=None, max_length=200, description="The name of a model or adapter; see /v1/models.")
]
Texts = Annotated[str | Strings, Field(description="One text, or several.")]
Top = Annotated[int, Field(ge=1, le=100)]
Layer = Annotated[int, Field(ge=-1000, le=1000)]
# The states of all requested layers are in memory at once; a large BERT has 25, including the embeddings.
Layers = Annotated[list[Layer], Field(max_length=32, fail_fast=True)]


class Form(BaseModel):
    """Base class for the bodies of cloze's own routes: unknown keys are rejected, and types are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: Name


class EmbedForm(Form):
    """Embed texts, or pairs of texts, as vectors."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["a ship at sea", "a boat"]}]})

    texts: Texts
    pairs: Texts | None = Field(default=None, description="The second text of each pair.")
    pooling: str | None = Field(
        default=None, max_length=20, description="cls, mean, max, mean_max, mean_words or pooler."
    )
    layer: Layer | Layers = Field(default=-1, description="The layer to pool; several are averaged.")
    long_texts: LongTexts = Field(default="cut", description="How texts beyond the maximum length are handled.")


class RerankForm(Form):
    """Rank texts by similarity to a query."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"query": "a ship at sea", "texts": ["a boat", "the stock market"]}]}
    )

    query: str
    texts: Strings
    top: Annotated[int | None, Field(ge=1)] = None


class SearchForm(Form):
    """Search the index of the service for the documents that match a query best."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"query": "a ship at sea", "top": 3}]})

    query: str
    top: Top = 10
    where: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=20, fail_fast=True)] = Field(
        default=[], description="Conditions on fields of the documents, such as year>=2020; all must hold."
    )
    mode: SearchMode = Field(default="hybrid", description="By meaning (vectors), by words (bm25), or both.")
    exact: bool = Field(default=False, description="Compare with every vector.")


class FillForm(Form):
    """Fill the [MASK] blanks of texts."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": "He shook his [MASK]."}]})

    texts: Texts
    top: Top = 5
    joint: bool = Field(default=False, description="Fill the blanks of a text jointly, by words that fit each other.")


class ClassifyForm(Form):
    """Label or rate texts, or pairs of texts."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["It was the best of times."]}]})

    texts: Texts
    pairs: Texts | None = Field(default=None, description="The second text of each pair.")
    abstain: bool = Field(
        default=True, description="Whether a model with a threshold for it may abstain: label null, with a reason."
    )


class TagForm(Form):
    """Tag the words of texts, or of sentences given as lists of words."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["Mr. Darcy left London."]}]})

    texts: str | Strings | Annotated[list[Strings], Field(fail_fast=True)]


class AnswerForm(Form):
    """Find the answer to a question in a text."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"question": "Who left?", "context": "Mr. Darcy left London."}]}
    )

    question: str
    context: str
    top: Top = 1


class ChooseForm(Form):
    """Choose which of several options fits a prompt."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "He opened the door", "options": ["and went in.", "of green."]}]}
    )

    prompt: str
    options: Annotated[list[str], Field(min_length=2, fail_fast=True)]


class CorrectForm(Form):
    """Correct mistakes in texts."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["He opened teh door."]}]})

    texts: Texts
    threshold: Annotated[float | None, Field(ge=0, le=1)] = Field(
        default=None, description="Minimum confidence of a correction; by default, as suits the model."
    )
    protected: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=100, fail_fast=True)] = Field(
        default=[], description="Words that are never changed."
    )


class ScoreForm(Form):
    """Score how likely texts are, by masking each token in turn."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["He shook his head."]}]})

    texts: Texts
    tokens: bool = Field(default=False, description="Also return the log-probability of every token.")


class FollowsForm(Form):
    """Predict how likely it is that the second text of each pair follows the first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"texts": ["He opened the door."], "pairs": ["The room was empty."]}]}
    )

    texts: Texts
    pairs: Texts


class TokenizeForm(Form):
    """Tokenize texts, or pairs of texts."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["unbelievable"]}]})

    texts: Texts
    pairs: Texts | None = Field(default=None, description="The second text of each pair.")


class OpenAIForm(BaseModel):
    """OpenAI's request for embeddings; keys that have no meaning here are ignored, as its clients expect."""

    model_config = ConfigDict(
        extra="ignore", strict=True, json_schema_extra={"examples": [{"model": None, "input": "a ship at sea"}]}
    )

    input: str | Strings | Ids | Annotated[list[Ids], Field(fail_fast=True)] = Field(
        description="Texts, or texts as lists of token ids."
    )
    model: Name
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int | None, Field(ge=1)] = None


class EncodeForm(BaseModel):
    """Embed texts, with the request format of bert-as-service's HTTP server."""

    model_config = ConfigDict(
        extra="ignore", strict=True, json_schema_extra={"examples": [{"id": 1, "texts": ["hello world"]}]}
    )

    id: int | Annotated[str, Field(max_length=1000)] | None = Field(default=None, description="Returned unchanged.")
    texts: Strings | Annotated[list[Strings], Field(fail_fast=True)]
    is_tokenized: bool = False
    model: Name


class DocumentForm(BaseModel):
    """A document of a request for reranking."""

    model_config = ConfigDict(extra="ignore", strict=True)

    text: str


class CompatRerankForm(BaseModel):
    """Rank documents by relevance to a query, with the request format of Cohere and Jina."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        json_schema_extra={"examples": [{"query": "a ship at sea", "documents": ["a boat", "the stock market"]}]},
    )

    query: str
    documents: Strings | Annotated[list[DocumentForm], Field(fail_fast=True)]
    top_n: Annotated[int | None, Field(ge=1)] = None
    return_documents: bool | None = Field(default=None, description="Whether results contain the documents; true.")
    model: Name


AnyForm = TypeVar("AnyForm", bound=BaseModel)

# Maximum number of mistakes of one body for which an error object is created. Lists stop at their first mistake
# (``fail_fast``), so only unknown keys can exceed it.
MOST_REPORTED = 100


def client_of(scope: Scope) -> str:
    """Return the client of a request: its IPv4 address or its IPv6 network (/64), since a host may use all of a /64.

    Behind a load balancer on this host, or on one that FORWARDED_ALLOW_IPS names, uvicorn replaces the address with
    that of X-Forwarded-For.
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
    """Reads request bodies. Their total size in memory is bounded as well, and shared fairly among clients."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._held = limits, FairShare(limits.held)

    async def read(self, request: Request, form: type[AnyForm]) -> AnyForm:
        """Read and validate the body of a request.

        Raises:
            ServiceError: The body is too large, too slow or not valid.
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
                    raise OverloadedError("too many bodies are being received; try again in 1 s", retry_after=1)
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
    if (count := error.error_count()) > MOST_REPORTED:  # ``errors()`` would create a dictionary for each
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
