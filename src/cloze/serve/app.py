"""The app: routers joined, errors in one form, and the gate around it all."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from cloze import __version__
from cloze.serve import compat_routes as others_routes
from cloze.serve import inspect_routes as inspecting
from cloze.serve import pages, routes, state_routes
from cloze.serve.access import Gate
from cloze.serve.answers import add_error_handlers
from cloze.serve.lookup import Posts
from cloze.serve.service import Service

# Seconds for the models' threads to end when the requests have: whatever nobody waits for ends after one pass.
ENDING = 4.0
# Whatever answers requests is joined here.
ROUTERS = (routes.router, others_routes.router, state_routes.router, pages.router, inspecting.router)


def make_app(service: Service) -> Gate:
    """An ASGI app around a service; its start starts the models' threads, its end waits for them."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001 (the form of a lifespan)
        service.library.start()
        yield
        service.ended = service.library.drain(ENDING)
        service.reader.close()

    app = FastAPI(
        title="cloze",
        version=__version__,
        description="BERT models behind HTTP.",
        docs_url=None,  # ours loads nothing from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.router.routes.insert(0, Posts(route for router in ROUTERS for route in router.routes))
    for router in ROUTERS:
        app.include_router(router)
    add_error_handlers(app)
    paths = [getattr(route, "path", "") for router in ROUTERS for route in router.routes]
    return Gate(app, service, frozenset(path for path in paths if path))
