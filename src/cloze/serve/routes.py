"""POST routes: one per operation of a model, and routes for clients of other services.

``compat_router`` has OpenAI's ``/v1/embeddings`` and ``/v1/models``, the rerank routes of Cohere and Jina, and
``/encode`` of bert-as-service's HTTP server; the ZMQ protocol of its Python client is not supported.
"""

import base64
from typing import Any
from uuid import uuid4

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from cloze.predict.search.building import unit_length
from cloze.predict.search.index import Index
from cloze.serve import schemas
from cloze.serve.models import ServedModel
from cloze.serve.operations import RERANK, SEARCH
from cloze.serve.outcomes import InvalidRequestError, TooLargeError
from cloze.serve.service import Service, ServiceResult, add_post_route, json_response
from cloze.tasks.answering.kind import ANSWER
from cloze.tasks.choice.kind import CHOOSE
from cloze.tasks.classification.kind import CLASSIFY, REGRESS
from cloze.tasks.tagging.kind import TAG

# Maximum of (protected words) x (characters). The search for the words takes time proportional to this product, in the
# model's thread, for which all other requests wait.
MOST_LOOKED_FOR = 1_000_000


async def embed(service: Service, request: Request, form: schemas.EmbedForm) -> Any:
    """Return one vector per text."""
    inputs = _pairs(form.texts, form.pairs)
    layer = form.layer if isinstance(form.layer, int) else tuple(form.layer)
    options = {"pooling": form.pooling, "layer": layer, "long_texts": form.long_texts}
    result = await service.predict(request, form.model, "embed", inputs, _parts(inputs), **options)
    return _response_body(result, vectors=[vector.tolist() for vector in result.results])


async def rerank(service: Service, request: Request, form: schemas.RerankForm) -> Any:
    """Return the texts ordered by relevance to the query, the most relevant first."""
    result, scores = await _similarities(service, request, form.model, form.query, form.texts)
    order = np.argsort(-scores, kind="stable")[: form.top]
    results = [{"index": int(index), "score": float(scores[index]), "text": form.texts[index]} for index in order]
    return _response_body(result, results=results)


async def _similarities(
    service: Service, request: Request, model: str | None, query: str, texts: list[str]
) -> tuple[ServiceResult, NDArray[np.float64]]:
    """Return the scores of a cross-encoder, if there is one, or else cosine similarities to the query."""
    if not texts:
        raise InvalidRequestError("no text was given; send at least one", "no_text")
    # A model for numbers may be a cross-encoder of another library, but only its name in the request tells.
    crosses = (one for one in service.models.served.values() if RERANK in one.abilities)
    chosen = (
        one for one in crosses if model == one.name or (model is None and one.description["task"] != REGRESS.name)
    )
    if (served := next(chosen, None)) is not None:
        pairs: list[tuple[str, Any]] = [(query, text) for text in texts]
        result = await service.predict(request, served.name, RERANK, pairs, _parts(pairs))
        return result, np.array(result.results)
    inputs = _pairs([query, *texts], None)
    result = await service.predict(request, model, "embed", inputs, _parts(inputs))
    vectors = np.stack(result.results).astype(np.float64)
    # The maximum avoids a division by zero; a zero vector has similarity 0 to everything.
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return result, vectors[1:] @ vectors[0]


async def search(service: Service, request: Request, form: schemas.SearchForm) -> Any:
    """Return the best documents of the index, each with its best passage."""
    served = service.models.find(form.model, SEARCH)
    index = service.models.index
    assert index is not None, "a model that can search has an index"
    inputs = [(index.model.embedding.prompt("query") + form.query, None)]
    vectors, usage = None, {}
    if form.mode == "bm25":
        service.check_size([[form.query]])
    else:
        result = await service.predict(request, served.name, "embed", inputs, _parts(inputs))
        vectors, usage = unit_length(np.stack(result.results)), _usage(result)
    options = {"where": form.where, "mode": form.mode, "exact": form.exact}
    client, cost = schemas.client_of(request.scope), CHARACTERS_PER_SEARCH + len(form.query)
    (hits,) = await service.search_pool.run(client, cost, _search, index, form.query, vectors, form.top, options)
    return {"model": served.name, "results": [vars(hit) for hit in hits], "usage": usage}


def _search(index: Index, query: str, vectors: NDArray[np.float32] | None, top: int, options: dict[str, Any]) -> Any:
    """Search the current version of the index; called in a thread."""
    index.refresh()
    return index.search_vectors([query], vectors, top, **options)


async def fill(service: Service, request: Request, form: schemas.FillForm) -> Any:
    """Return the most likely words for each [MASK], or the best joint fillings of each text."""
    texts = _listed(form.texts)
    service.check_proposals(texts, form.top, joint=form.joint)
    return await _each(service, request, form, "fill", texts, top=form.top, joint=form.joint)


async def classify(service: Service, request: Request, form: schemas.ClassifyForm) -> Any:
    """Return a label, labels or a number per text."""
    inputs = _pairs(form.texts, form.pairs)
    options = {"abstain": form.abstain}
    result = await service.predict(request, form.model, CLASSIFY.operation, inputs, _parts(inputs), **options)
    return _response_body(result, results=result.results)


async def tag(service: Service, request: Request, form: schemas.TagForm) -> Any:
    """Return the tagged words and the entities of each text."""
    texts = [form.texts] if isinstance(form.texts, str) else form.texts
    parts = [[text if isinstance(text, str) else " ".join(text)] for text in texts]
    worded = bool(texts) and not isinstance(texts[0], str)
    result = await service.predict(request, form.model, TAG.operation, texts, parts, worded=worded)
    return _response_body(result, results=result.results)


async def answer(service: Service, request: Request, form: schemas.AnswerForm) -> Any:
    """Return the best answers to the question in the context."""
    inputs = [(form.question, form.context)]
    result = await service.predict(request, form.model, ANSWER.operation, inputs, _parts(inputs), top=form.top)
    return _response_body(result, answers=result.results[0])


async def choose(service: Service, request: Request, form: schemas.ChooseForm) -> Any:
    """Return the options, the best first."""
    parts = [[text for option in form.options for text in (form.prompt, option)]]
    result = await service.predict(request, form.model, CHOOSE.operation, [(form.prompt, form.options)], parts)
    return _response_body(result, options=result.results[0])


async def correct(service: Service, request: Request, form: schemas.CorrectForm) -> Any:
    """Return each text with its corrections."""
    texts, words = _listed(form.texts), len(form.protected)
    characters = sum(map(len, texts))
    if words * characters > MOST_LOOKED_FOR:
        raise TooLargeError(
            f"{words} protected words in {characters} characters are {words * characters} comparisons, but at most "
            f"{MOST_LOOKED_FOR} are allowed; send fewer words or shorter texts",
            "too_many_protected",
        )
    options = {"threshold": form.threshold, "protected": tuple(form.protected)}
    return await _each(service, request, form, "correct", texts, **options)


async def score(service: Service, request: Request, form: schemas.ScoreForm) -> Any:
    """Return the log-probability and perplexity of each text."""
    return await _each(service, request, form, "score", _listed(form.texts), tokens=form.tokens)


async def follows(service: Service, request: Request, form: schemas.FollowsForm) -> Any:
    """Return the probability that each second text follows its first."""
    inputs = _pairs(form.texts, form.pairs)
    result = await service.predict(request, form.model, "follows", inputs, _parts(inputs))
    return _response_body(result, probabilities=result.results)


async def tokenize(service: Service, request: Request, form: schemas.TokenizeForm) -> Any:
    """Return the tokens of each text, their ids, and their offsets in the text."""
    served = service.models.find(form.model, "embed")
    inputs = _pairs(form.texts, form.pairs)
    client, characters = schemas.client_of(request.scope), service.check_size(_parts(inputs))
    texts, pairs = [text for text, _ in inputs], None if form.pairs is None else [pair for _, pair in inputs]
    encodings = await service.tokenizer_pool.run(client, characters, served.tokenizer.encode_batch, texts, pairs)
    results = [
        {
            "tokens": encoding.tokens,
            "ids": encoding.ids,
            "segments": encoding.segments,
            "offsets": encoding.offsets,
            "truncated": encoding.dropped > 0,
        }
        for encoding in encodings
    ]
    return {"model": served.name, "results": results}


async def _each(
    service: Service, request: Request, form: schemas.Form, operation: str, texts: list[str], **options: Any
) -> Any:
    result = await service.predict(request, form.model, operation, texts, [[text] for text in texts], **options)
    return _response_body(result, results=result.results)


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _pairs(texts: str | list[str], pairs: str | list[str] | None) -> list[tuple[str, str | None]]:
    firsts = _listed(texts)
    if pairs is None:
        return [(text, None) for text in firsts]
    seconds = _listed(pairs)
    if len(firsts) != len(seconds):
        raise InvalidRequestError(
            f"{len(firsts)} texts, but {len(seconds)} pairs; expected one for each", "unequal_pairs"
        )
    return list(zip(firsts, seconds, strict=True))


def _parts(inputs: list[tuple[str, Any]]) -> list[list[str]]:
    return [[text] if pair is None else [text, pair] for text, pair in inputs]


def _response_body(result: ServiceResult, **results: Any) -> dict[str, Any]:
    """Return the results with the name of the model that computed them and the number of tokens used."""
    return {"model": result.served.name, **results, "usage": _usage(result)}


def _usage(result: ServiceResult) -> dict[str, int]:
    return {"tokens": result.usage.tokens, "truncated": result.usage.truncated, "unknown": result.usage.unknown}


router = APIRouter()
add_post_route(router, "/embed", schemas.EmbedForm, embed, "models")
add_post_route(router, "/rerank", schemas.RerankForm, rerank, "models")
add_post_route(router, "/search", schemas.SearchForm, search, "models")
add_post_route(router, "/fill", schemas.FillForm, fill, "models")
add_post_route(router, "/classify", schemas.ClassifyForm, classify, "models")
add_post_route(router, "/tag", schemas.TagForm, tag, "models")
add_post_route(router, "/answer", schemas.AnswerForm, answer, "models")
add_post_route(router, "/choose", schemas.ChooseForm, choose, "models")
add_post_route(router, "/correct", schemas.CorrectForm, correct, "models")
add_post_route(router, "/score", schemas.ScoreForm, score, "models")
add_post_route(router, "/follows", schemas.FollowsForm, follows, "models")
add_post_route(router, "/tokenize", schemas.TokenizeForm, tokenize, "models")


# Number of characters that a search counts as in the limit on waiting work.
CHARACTERS_PER_SEARCH = 20_000
# Number of characters that an id counts as in the limit on pending tokenization.
CHARACTERS_PER_ID = 4
TRUNCATED = "x-cloze-truncated"

compat_router = APIRouter()


async def embeddings(service: Service, request: Request, form: schemas.OpenAIForm) -> Any:
    """Return embeddings in the format of OpenAI's ``/v1/embeddings``."""
    served = service.models.find(form.model, "embed")
    texts = await _texts(service, request, served, form.input)
    if form.dimensions is not None and form.dimensions != served.description["width"]:
        raise InvalidRequestError(
            f"dimensions is {form.dimensions}; model {served.name!r} has vectors of {served.description['width']} "
            "that cannot be truncated; leave it out",
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
    """Return the texts of an input; lists of ids are decoded, in the tokenizer threads and within the limits."""
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
    """Decode the ids of a text, with or without [CLS] and [SEP] around them."""
    tokenizer = served.tokenizer
    inner = ids[bool(ids) and ids[0] == tokenizer.cls_id :]
    inner = inner[: len(inner) - (bool(inner) and inner[-1] == tokenizer.sep_id)]
    if len(inner) > served.longest:
        raise InvalidRequestError(
            f"{len(ids)} ids for one text; model {served.name!r} accepts at most {served.longest}", "too_many_ids"
        )
    text: str = tokenizer.decode(inner)
    if tokenizer.encode_ids([text]) != [inner]:
        raise InvalidRequestError(
            f"these ids are not those of a text in the vocabulary of model {served.name!r}; send the text", "not_a_text"
        )
    return text


async def compat_rerank(service: Service, request: Request, form: schemas.CompatRerankForm) -> Any:
    """Rank documents, in the format of the rerank routes of Cohere and Jina."""
    texts = [document if isinstance(document, str) else document.text for document in form.documents]
    result, scores = await _similarities(service, request, form.model, form.query, texts)
    results: list[dict[str, Any]] = []
    for place in np.argsort(-scores, kind="stable")[: form.top_n]:
        found: dict[str, Any] = {"index": int(place), "relevance_score": float(scores[place])}
        results.append(found if form.return_documents is False else found | {"document": {"text": texts[place]}})
    tokens, truncated = result.usage.tokens, result.usage.truncated
    body = {
        "id": uuid4().hex,
        "object": "list",
        "model": result.served.name,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"billed_units": {"search_units": 0}, "tokens": {"input_tokens": tokens}},
    }
    return _with_truncation_header(body, truncated)


async def encode(service: Service, request: Request, form: schemas.EncodeForm) -> Any:
    """Return embeddings in the format of bert-as-service's ``/encode``."""
    if form.texts and form.is_tokenized == isinstance(form.texts[0], str):
        raise InvalidRequestError("is_tokenized must be true for lists of tokens, and only for them", "is_tokenized")
    # Join word pieces: "##ing" continues the previous piece.
    texts = [text if isinstance(text, str) else " ".join(text).replace(" ##", "") for text in form.texts]
    inputs = [(text, None) for text in texts]
    result = await service.predict(request, form.model, "embed", inputs, [[text] for text in texts])
    body = {"id": form.id, "status": 200, "result": [vector.tolist() for vector in result.results]}
    return _with_truncation_header(body, result.usage.truncated)


def _with_truncation_header(body: dict[str, Any], truncated: int) -> Response:
    """Return a response with the number of truncated texts in a header, because the body has no field for it."""
    return json_response(body, {TRUNCATED: str(truncated)})


def _describe_model(served: ServedModel) -> dict[str, Any]:
    parent = None if served.adapter is None else served.base
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "cloze", "parent": parent}


@compat_router.get("/v1/models", tags=["openai"], summary="List the models and adapters.")
async def models(request: Request) -> Response:
    """Return all models in the format of OpenAI's list."""
    service: Service = request.app.state.service
    return json_response(
        {"object": "list", "data": [_describe_model(served) for served in service.models.served.values()]}
    )


@compat_router.get("/v1/models/{name:path}", tags=["openai"], summary="Describe one model.")
async def one_model(request: Request, name: str) -> Response:
    """Return one model in the format of OpenAI's list entries."""
    service: Service = request.app.state.service
    return json_response(_describe_model(service.models.find(name, "embed")))


add_post_route(compat_router, "/v1/embeddings", schemas.OpenAIForm, embeddings, "openai")
add_post_route(compat_router, "/v1/rerank", schemas.CompatRerankForm, compat_rerank, "rerank")
add_post_route(compat_router, "/v2/rerank", schemas.CompatRerankForm, compat_rerank, "rerank")
add_post_route(compat_router, "/encode", schemas.EncodeForm, encode, "bert-as-service")
