"""One request from endpoint to response: schema, limits, tokenization, the wait for a batch, JSON or an error.

``add_post_route`` turns a handler into a route. Handlers call ``Service.predict``, which checks the limits, tokenizes,
queues a job and waits until it is done, its deadline has passed or the client has disconnected. All errors have the
same JSON body.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from cloze.errors import RequestError
from cloze.predict.fill_mask import count_blanks
from cloze.serve.batcher import AbandonedError, Batcher
from cloze.serve.models import ModelRegistry, ServedModel
from cloze.serve.outcomes import DeadlineError, InvalidRequestError, Metrics, ServiceError, TooLargeError, error_body
from cloze.serve.queue import BatchKey, Job
from cloze.serve.schemas import Bodies, client_of
from cloze.serve.settings import ServiceSettings
from cloze.serve.tokenization import TokenizedInputs, TokenizerPool, Usage, tokenize

CHARACTERS_PER_WORD = 6  # including the space

Body = TypeVar("Body", bound=BaseModel)

_ERROR = {
    "type": "object",
    "properties": {
        "error": {"type": "object", "properties": {"type": {"type": "string"}, "message": {"type": "string"}}}
    },
}
# Error statuses of every route, for the OpenAPI description, from which clients can be generated.
STATUSES = {
    400: "The body is not valid, or the model does not support the operation.",
    401: "The key is missing or wrong.",
    403: "The request comes from a page on another site.",
    404: "There is no such model.",
    408: "The body did not arrive or the result was not ready in time.",
    413: "The request exceeds a limit.",
    421: "The request is for a host name that this service does not trust.",
    429: "The service is overloaded; see Retry-After.",
    503: "The model failed on this input.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": why, "content": {"application/json": {"schema": _ERROR}}}
    for status, why in STATUSES.items()
}


class ClientGoneError(Exception):
    """The client has disconnected."""


@dataclass(frozen=True)
class ServiceResult:
    """The results for a request's inputs, in order, and the model that computed them."""

    served: ServedModel
    results: list[Any]
    usage: Usage


class Service:
    """The state that all routes share: settings, models, metrics."""

    def __init__(self, settings: ServiceSettings, models: ModelRegistry, metrics: Metrics) -> None:
        self.settings, self.models, self.metrics = settings, models, metrics
        self.bodies, self.tokenizer_pool = Bodies(settings.limits), TokenizerPool(metrics.tokenization_seconds)
        self.search_pool = TokenizerPool(metrics.search_seconds, name="search", inline=0)
        self.draining = False
        self.ended = True  # after shutdown: whether all model threads have ended

    async def predict(
        self,
        request: Request,
        name: str | None,
        operation: str,
        inputs: Sequence[Any],
        parts: Sequence[Sequence[str]],
        **options: Any,
    ) -> ServiceResult:
        """Compute the results of a request.

        Args:
            request: The HTTP request, watched for a disconnect.
            name: The model, or None for the first that supports the operation.
            operation: What to compute, such as "embed".
            inputs: The inputs of the operation.
            parts: The texts of each input, for the limits.
            **options: Options of the operation; only inputs with equal options share a batch.

        Raises:
            ServiceError: A limit is exceeded, the model does not support the operation, or the deadline has passed.
            ClientGoneError: The client has disconnected.
        """
        deadline = time.monotonic() + self.settings.limits.timeout
        served = self.models.find(name, operation)
        characters, client = self.check_size(parts), client_of(request.scope)
        tokenized: TokenizedInputs = await self.tokenizer_pool.run(
            client, characters, tokenize, served, operation, inputs, parts, options
        )
        usage, bound = tokenized.usage, served.batcher.queue.bound
        if usage.tokens > bound:
            raise TooLargeError(
                f"{usage.tokens} tokens to compute for one request, but at most {bound} are allowed; send fewer or "
                f"shorter texts",
                "too_many_tokens",
            )
        key = BatchKey(operation, served.adapter, tuple(options.items()))
        job = Job(key, tokenized.inputs, usage.lengths, deadline, client)
        served.batcher.submit(job)
        return ServiceResult(served, await self._wait(request, served.batcher, job), usage)

    def check_size(self, parts: Sequence[Sequence[Sized]]) -> int:
        """Check the numbers of texts and characters (or ids) against the limits; return the number of characters."""
        limits = self.settings.limits
        texts = sum(map(len, parts))
        if not texts:
            raise InvalidRequestError("no text was given; send at least one", "no_text")
        if texts > limits.inputs:
            raise TooLargeError(
                f"{texts} texts in one request, but at most {limits.inputs} are allowed; send fewer", "too_many_inputs"
            )
        characters = sum(len(text) for texts_of_input in parts for text in texts_of_input)
        if characters > limits.characters:
            raise TooLargeError(
                f"{characters} characters in one request, but at most {limits.characters} are allowed; send fewer or "
                f"shorter texts",
                "too_many_characters",
            )
        return characters

    def check_proposals(self, texts: Sequence[str], top: int, *, joint: bool) -> None:
        """Check the number of words in the response against the limit."""
        limit = self.settings.limits.proposals
        # Joint filling returns ``top`` whole texts.
        words = sum(count_blanks(text) + (len(text) // CHARACTERS_PER_WORD if joint else 0) for text in texts)
        if words * top > limit:
            raise TooLargeError(
                f"{words * top} words in one answer, but at most {limit} are allowed; send fewer blanks, or ask for a "
                f"smaller top",
                "too_many_proposals",
            )

    async def _wait(self, request: Request, batcher: Batcher, job: Job) -> list[Any]:
        """Wait for the results of a job, its deadline or the disconnection of the client, whichever comes first."""
        results = asyncio.wrap_future(job.future)
        disconnect = asyncio.ensure_future(_disconnected(request))
        either: list[asyncio.Future[Any]] = [results, disconnect]
        try:
            remaining = job.deadline - time.monotonic()
            done, _ = await asyncio.wait(either, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            # The model thread may notice a passed deadline before this coroutine does.
            abandoned = results in done and (results.cancelled() or isinstance(results.exception(), AbandonedError))
            if results in done and not abandoned:
                return results.result()
            self.metrics.dropped.labels("client" if disconnect in done else "deadline").inc()
            if disconnect in done:
                raise ClientGoneError
            timeout = self.settings.limits.timeout
            raise DeadlineError(f"no answer within {timeout:g} s; send fewer texts per request, or try again")
        finally:
            disconnect.cancel()
            if not job.future.done():
                batcher.cancel(job)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


Handler = Callable[[Service, Request, Body], Awaitable[Any]]


def add_post_route(router: APIRouter, path: str, form: type[Body], handler: Handler[Body], tag: str) -> None:
    """Add a POST route that validates the body and returns the handler's result as JSON.

    Args:
        router: The router.
        path: The path of the route.
        form: The schema of the body. It is added to the OpenAPI description here, because ``Bodies`` reads and
            validates the body instead of FastAPI.
        handler: Computes the result, which may be a ``Response``.
        tag: The section of the OpenAPI description.
    """

    async def endpoint(request: Request) -> Response:
        service: Service = request.app.state.service
        body = await service.bodies.read(request, form)
        try:
            result = await handler(service, request, body)
            return result if isinstance(result, Response) else json_response(result)
        except ServiceError:
            raise
        except RequestError as error:  # raised by the model for this input
            raise InvalidRequestError(str(error)[:500], "unanswerable") from error

    schema = form.model_json_schema(ref_template="#/components/schemas/{model}")
    router.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        name=path.strip("/").replace("/", "_"),
        summary=form.__doc__,
        tags=[tag],
        responses=ERRORS,
        response_class=Response,
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
    )


def json_response(value: Any, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response; numbers that are not finite become null, since JSON cannot represent them."""
    return Response(to_json(value, inf_nan_mode="null"), headers=headers, media_type="application/json")


def error_response(error: ServiceError, *, password: bool = False) -> Response:
    """Return an error as a response; with ``password``, a browser prompts for the key."""
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if error.status == 401:
        headers["www-authenticate"] = 'Basic realm="cloze"' if password else "Bearer"
    return _error(error.status, error.kind, str(error), headers)


def add_error_handlers(app: FastAPI) -> None:
    """Give all errors, including unknown paths and methods, the same JSON body."""

    async def refused(request: Request, error: Exception) -> Response:  # noqa: ARG001 (the handler's signature)
        assert isinstance(error, ServiceError)
        return error_response(error)

    async def missing(request: Request, error: Exception) -> Response:  # noqa: ARG001 (the handler's signature)
        assert isinstance(error, HTTPException)
        kind, message = {
            404: ("not_found", "there is nothing at this path; /docs lists all routes"),
            405: ("method_not_allowed", "this path does not support this method; see /docs"),
        }.get(error.status_code, ("invalid_request", str(error.detail)[:200]))
        return _error(error.status_code, kind, message, error.headers)

    async def gone(request: Request, error: Exception) -> Response:  # noqa: ARG001 (the handler's signature)
        return Response(status_code=499)  # the client is gone, but the metrics count it

    async def broken(request: Request, error: Exception) -> Response:  # noqa: ARG001 (the handler's signature)
        return _error(500, "internal", "a bug in cloze; see the log of the service")

    for kind, handler in {
        ServiceError: refused,
        HTTPException: missing,
        ClientDisconnect: gone,
        ClientGoneError: gone,
        Exception: broken,
    }.items():
        app.add_exception_handler(kind, handler)


def _error(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(error_body(kind, message)), status, headers=headers, media_type="application/json")
