"""Routes compatible with other services' clients: OpenAI's embeddings and models, bert-as-service's ``/encode``.

bert-as-service is meant in its HTTP form; its own Python client speaks ZMQ, which is not served.
"""

import base64
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from cloze.serve import schemas
from cloze.serve.errors import InvalidRequestError
from cloze.serve.models import ServedModel
from cloze.serve.service import Service, add_post_route, json_response

# Characters that an id counts as in the limit on pending tokenization.
CHARACTERS_PER_ID = 4
TRUNCATED = "x-cloze-truncated"

router = APIRouter()


async def embeddings(service: Service, request: Request, form: schemas.OpenAIForm) -> Any:
    """OpenAI's ``/v1/embeddings``."""
    served = service.models.find(form.model, "embed")
    texts = await _texts(service, request, served, form.input)
    if form.dimensions is not None and form.dimensions != served.description["width"]:
        raise InvalidRequestError(
            f"dimensions is {form.dimensions}; model {served.name!r} has vectors of {served.description['width']} "
            "that are of no use when cut",
            "dimensions",
        )
    inputs = [(text, None) for text in texts]
    result = await service.predict(request, form.model, "embed", inputs, [[text] for text in texts])
    encode_vector = _base64 if form.encoding_format == "base64" else _numbers
    tokens, truncated = result.usage.tokens, result.usage.truncated
    body = {
        "object": "list",
        "model": result.served.name,
        "data": [
            {"object": "embedding", "index": index, "embedding": encode_vector(vector)}
            for index, vector in enumerate(result.results)
        ],
        "usage": {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "truncated": truncated,
            "unknown": result.usage.unknown,
        },
    }
    return _with_truncation_header(body, truncated)


def _numbers(vector: NDArray[np.float32]) -> list[float]:
    numbers: list[float] = vector.tolist()
    return numbers


def _base64(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


async def _texts(
    service: Service, request: Request, served: ServedModel, given: str | list[str] | list[int] | list[list[int]]
) -> list[str]:
    """Return the texts of an input; ids are decoded, off the event loop and within the limits."""
    if isinstance(given, str):
        return [given]
    if not given or isinstance(given[0], str):
        return [text for text in given if isinstance(text, str)]
    rows = [row for row in given if isinstance(row, list)] or [[id_ for id_ in given if isinstance(id_, int)]]
    ids = service.check_size([[row] for row in rows])
    texts: list[str] = await service.tokenizer_pool.run(
        schemas.client_of(request.scope), CHARACTERS_PER_ID * ids, _decode, served, rows
    )
    return texts


def _decode(served: ServedModel, rows: list[list[int]]) -> list[str]:
    return [_decoded(served, ids) for ids in rows]


def _decoded(served: ServedModel, ids: list[int]) -> str:
    """Decode ids, with or without [CLS] and [SEP] around them."""
    tokenizer = served.tokenizer
    inner = ids[bool(ids) and ids[0] == tokenizer.cls_id :]
    inner = inner[: len(inner) - (bool(inner) and inner[-1] == tokenizer.sep_id)]
    if len(inner) > served.longest:
        raise InvalidRequestError(
            f"{len(ids)} ids for one text; model {served.name!r} reads {served.longest}", "too_many_ids"
        )
    text: str = tokenizer.decode(inner)
    if tokenizer.encode_ids([text]) != [inner]:
        raise InvalidRequestError(
            f"these ids are not those of a text in the vocabulary of model {served.name!r}; send the text", "not_a_text"
        )
    return text


async def encode(service: Service, request: Request, form: schemas.EncodeForm) -> Any:
    """bert-as-service's ``/encode``, as its HTTP server answers it."""
    if form.texts and form.is_tokenized == isinstance(form.texts[0], str):
        raise InvalidRequestError("is_tokenized goes with lists of tokens, and only with them", "is_tokenized")
    # Join word pieces: "##ing" continues the previous piece.
    texts = [text if isinstance(text, str) else " ".join(text).replace(" ##", "") for text in form.texts]
    inputs = [(text, None) for text in texts]
    result = await service.predict(request, form.model, "embed", inputs, [[text] for text in texts])
    body = {"id": form.id, "status": 200, "result": [vector.tolist() for vector in result.results]}
    return _with_truncation_header(body, result.usage.truncated)


def _with_truncation_header(body: dict[str, Any], truncated: int) -> Response:
    """Return a response whose header says how many texts were truncated, since the body has no field for it."""
    return json_response(body, {TRUNCATED: str(truncated)})


def _describe_model(served: ServedModel) -> dict[str, Any]:
    parent = None if served.adapter is None else served.base
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "cloze", "parent": parent}


@router.get("/v1/models", tags=["openai"], summary="The models and adapters that there are.")
async def models(request: Request) -> Response:
    """OpenAI's list."""
    service: Service = request.app.state.service
    return json_response(
        {"object": "list", "data": [_describe_model(served) for served in service.models.served.values()]}
    )


@router.get("/v1/models/{name:path}", tags=["openai"], summary="One of the models.")
async def one_model(request: Request, name: str) -> Response:
    """OpenAI's single entry."""
    service: Service = request.app.state.service
    return json_response(_describe_model(service.models.find(name, "embed")))


add_post_route(router, "/v1/embeddings", schemas.OpenAIForm, embeddings, "openai")
add_post_route(router, "/encode", schemas.EncodeForm, encode, "bert-as-service")
