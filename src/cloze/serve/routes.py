"""Our own routes, one per operation of a model."""

from typing import Any

import numpy as np
from fastapi import APIRouter, Request

from cloze.serve import schemas
from cloze.serve.errors import InvalidRequestError, TooLargeError
from cloze.serve.service import Service, ServiceResult, add_post_route
from cloze.tasks.answering.kind import ANSWER
from cloze.tasks.choice.kind import CHOOSE
from cloze.tasks.classification.kind import CLASSIFY
from cloze.tasks.tagging.kind import TAG

# Maximum of (protected words) x (characters). The search for the words takes time proportional to it, in the model's
# thread, where all other requests wait.
MOST_LOOKED_FOR = 1_000_000


async def embed(service: Service, request: Request, form: schemas.EmbedForm) -> Any:
    """Return one vector per text."""
    inputs = _pairs(form.texts, form.pairs)
    layer = form.layer if isinstance(form.layer, int) else tuple(form.layer)
    options = {"pooling": form.pooling, "layer": layer, "long_texts": form.long_texts}
    result = await service.predict(request, form.model, "embed", inputs, _parts(inputs), **options)
    return _response_body(result, vectors=[vector.tolist() for vector in result.results])


async def rerank(service: Service, request: Request, form: schemas.RerankForm) -> Any:
    """Return the texts ordered by cosine similarity to the query, the most similar first."""
    if not form.texts:
        raise InvalidRequestError("there is no text; give at least one", "no_text")
    inputs = _pairs([form.query, *form.texts], None)
    result = await service.predict(request, form.model, "embed", inputs, _parts(inputs))
    vectors = np.stack(result.results).astype(np.float64)
    # The maximum avoids a division by zero: a vector of zeros has similarity 0 to everything.
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    scores = vectors[1:] @ vectors[0]
    order = np.argsort(-scores, kind="stable")[: form.top]
    results = [{"index": int(index), "score": float(scores[index]), "text": form.texts[index]} for index in order]
    return _response_body(result, results=results)


async def fill(service: Service, request: Request, form: schemas.FillForm) -> Any:
    """Return the best words for each [MASK], or the best joint fillings of each text."""
    texts = _listed(form.texts)
    service.check_proposals(texts, form.top, joint=form.joint)
    return await _each(service, request, form, "fill", texts, top=form.top, joint=form.joint)


async def classify(service: Service, request: Request, form: schemas.ClassifyForm) -> Any:
    """Return a label, labels or a number per text."""
    inputs = _pairs(form.texts, form.pairs)
    result = await service.predict(request, form.model, CLASSIFY.operation, inputs, _parts(inputs))
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
            f"{words} protected words in {characters} characters are {words * characters} places to look, of at most "
            f"{MOST_LOOKED_FOR}; send fewer words or shorter texts",
            "too_many_protected",
        )
    options = {"threshold": form.threshold, "protected": tuple(form.protected)}
    return await _each(service, request, form, "correct", texts, **options)


async def score(service: Service, request: Request, form: schemas.ScoreForm) -> Any:
    """Return how likely each text is."""
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
            f"{len(firsts)} texts, but {len(seconds)} pairs; one for each was expected", "unequal_pairs"
        )
    return list(zip(firsts, seconds, strict=True))


def _parts(inputs: list[tuple[str, Any]]) -> list[list[str]]:
    return [[text] if pair is None else [text, pair] for text, pair in inputs]


def _response_body(result: ServiceResult, **results: Any) -> dict[str, Any]:
    """Return the results with the name of the model that computed them and the tokens used."""
    usage = {"tokens": result.usage.tokens, "truncated": result.usage.truncated, "unknown": result.usage.unknown}
    return {"model": result.served.name, **results, "usage": usage}


router = APIRouter()
add_post_route(router, "/embed", schemas.EmbedForm, embed, "models")
add_post_route(router, "/rerank", schemas.RerankForm, rerank, "models")
add_post_route(router, "/fill", schemas.FillForm, fill, "models")
add_post_route(router, "/classify", schemas.ClassifyForm, classify, "models")
add_post_route(router, "/tag", schemas.TagForm, tag, "models")
add_post_route(router, "/answer", schemas.AnswerForm, answer, "models")
add_post_route(router, "/choose", schemas.ChooseForm, choose, "models")
add_post_route(router, "/correct", schemas.CorrectForm, correct, "models")
add_post_route(router, "/score", schemas.ScoreForm, score, "models")
add_post_route(router, "/follows", schemas.FollowsForm, follows, "models")
add_post_route(router, "/tokenize", schemas.TokenizeForm, tokenize, "models")
