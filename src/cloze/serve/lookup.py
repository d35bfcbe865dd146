"""POSTs, found by looking their path up.

For every request FastAPI tries one route after another, and works out what its endpoint takes: together more than all
that else is done for a request on the event loop. Ours take the request as it is and read it themselves. So they are
called at once here, while FastAPI keeps its own routes for the description, and for what is asked for seldom.
"""

from collections.abc import Iterable
from typing import NoReturn

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, NoMatchFound, request_response
from starlette.types import Receive, Scope, Send


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
