"""From a form to a route: read the body, ask, and write JSON. All errors have one form.

POSTs, found by looking their path up.

For every request FastAPI tries one route after another, and works out what its endpoint takes: together more than all
that else is done for a request on the event loop. Ours take the request as it is and read it themselves. So they are
called at once here, while FastAPI keeps its own routes for the description, and for what is asked for seldom.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match, NoMatchFound, request_response
from starlette.types import Receive, Scope, Send

from cloze.errors import RequestError
from cloze.serve.errors import Invalid, Refusal, body_of
from cloze.serve.service import ClientGoneError, Service

Body = TypeVar("Body", bound=BaseModel)
Handler = Callable[[Service, Request, Body], Awaitable[Any]]

_ERROR = {
    "type": "object",
    "properties": {
        "error": {"type": "object", "properties": {"type": {"type": "string"}, "message": {"type": "string"}}}
    },
}
# What any route may answer; that they are told lets programs be made from the description.
STATUSES = {
    400: "Not of this form, or not to be done by this model.",
    401: "A key is needed.",
    403: "A page of another site asks.",
    404: "No such model.",
    408: "Not in time.",
    413: "Beyond a limit.",
    421: "For a host that this is not.",
    429: "Too much is waiting; see Retry-After.",
    503: "The model failed on it.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": why, "content": {"application/json": {"schema": _ERROR}}}
    for status, why in STATUSES.items()
}


def add_post(router: APIRouter, path: str, form: type[Body], handler: Handler[Body], tag: str) -> None:
    """Answer POSTs to a path. The form is told to the description by hand, since the body is read raw."""

    async def endpoint(request: Request) -> Response:
        service: Service = request.app.state.service
        body = await service.bodies.read(request, form)
        try:
            answer = await handler(service, request, body)
            return answer if isinstance(answer, Response) else json_response(answer)
        except Refusal:
            raise
        except RequestError as error:  # what the model says to it
            raise Invalid(str(error)[:500], "unanswerable") from error

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
    """JSON of what is finite anyway; a number that is not would not be JSON."""
    return Response(to_json(value, inf_nan_mode="null"), headers=headers, media_type="application/json")


def refusal_response(refusal: Refusal, *, password: bool = False) -> Response:
    """A refusal in the one form that all errors have; ``password`` lets a browser ask for the key."""
    headers = {}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.status == 401:
        headers["www-authenticate"] = 'Basic realm="cloze"' if password else "Bearer"
    return _error(refusal.status, refusal.kind, str(refusal), headers)


def add_error_handlers(app: FastAPI) -> None:
    """Refusals, and paths and methods that are not there, in the same form."""

    async def refused(request: Request, error: Exception) -> Response:  # noqa: ARG001 (the handler's signature)
        assert isinstance(error, Refusal)
        return refusal_response(error)

    async def missing(request: Request, error: Exception) -> Response:  # noqa: ARG001 (the handler's signature)
        assert isinstance(error, HTTPException)
        kind, message = {
            404: ("not_found", "there is nothing at this path; /docs tells what there is"),
            405: ("method_not_allowed", "this path takes another method; /docs tells which"),
        }.get(error.status_code, ("invalid_request", str(error.detail)[:200]))
        return _error(error.status_code, kind, message, error.headers)

    async def gone(request: Request, error: Exception) -> Response:  # noqa: ARG001 (the handler's signature)
        return Response(status_code=499)  # nobody reads it, but it is counted

    async def broken(request: Request, error: Exception) -> Response:  # noqa: ARG001 (the handler's signature)
        return _error(500, "internal", "a defect of cloze; the log tells more")

    for kind, handler in {
        Refusal: refused,
        HTTPException: missing,
        ClientDisconnect: gone,
        ClientGoneError: gone,
        Exception: broken,
    }.items():
        app.add_exception_handler(kind, handler)


def _error(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(body_of(kind, message)), status, headers=headers, media_type="application/json")


class Posts(BaseRoute):
    """All routes that take POSTs, as one that stands before them."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._endpoints = {
            route.path: request_response(route.endpoint)
            for route in routes
            if isinstance(route, APIRoute) and route.methods == {"POST"}
        }

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it is one of them."""
        is_one = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._endpoints
        return (Match.FULL if is_one else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer it."""
        await self._endpoints[scope["path"]](scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: str) -> NoReturn:
        """Names are FastAPI's."""
        raise NoMatchFound(name, path_params)
