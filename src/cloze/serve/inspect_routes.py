"""The attention views: the page at ``/inspect``, its scripts, what it asks for, and weights a layer at a time."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field

from cloze.inspect.views.page import read_static, served_page, static_names
from cloze.serve.attention_views import Views
from cloze.serve.responses import add_post
from cloze.serve.schemas import Form
from cloze.serve.service import Service

PLACE = "/inspect"
TYPES = {".js": "text/javascript", ".css": "text/css"}


class InspectForm(Form):
    """A text, or two, to see the attention of."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "I went to the store."}]})

    text: str
    pair: str | None = Field(default=None, description="A second text.")


async def view(service: Service, request: Request, form: InspectForm) -> Any:
    """What the page shows of a text, but for the weights; ``id`` is what these are asked for by."""
    texts = [form.text] if form.pair is None else [form.text, form.pair]
    answered = await service.ask(request, form.model, "inspect", [(form.text, form.pair)], [texts])
    (seen,) = answered.results
    return {**seen.facts, "model": answered.served.name, "id": _views(request).keep(seen)}


async def weights(request: Request, name: str, layer: str) -> Response:
    """The weights of one layer, deflated bytes."""
    seen, number = _views(request).find(name, layer)
    return Response(await asyncio.to_thread(seen.layer, number), media_type="application/octet-stream")


def _views(request: Request) -> Views:
    """What this app has looked at."""
    state = request.app.state
    if not hasattr(state, "views"):
        state.views = Views()
    found: Views = state.views
    return found


def _add(router: APIRouter, path: str, text: str, kind: str) -> None:
    content = text.encode()

    async def endpoint() -> Response:
        return Response(content, headers={"content-type": f"{kind}; charset=utf-8"})

    router.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False)


router = APIRouter()
add_post(router, f"{PLACE}/view", InspectForm, view, "pages")
router.add_api_route(
    f"{PLACE}/weights/{{name}}/{{layer}}", weights, methods=["GET"], include_in_schema=False, response_class=Response
)
# Relative, so that the service may lie below a path of another.
_add(router, PLACE, served_page("inspect/static"), "text/html")
for _name in static_names():
    _add(router, f"{PLACE}/static/{_name}", read_static(_name), TYPES[_name[_name.rindex(".") :]])
