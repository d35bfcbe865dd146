"""cloze's own routes: each returns the results of the model, or a clear error message."""

import asyncio
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from torture.services import Running, made_index, running

from cloze.errors import CheckpointError
from cloze.predict import Model, load
from cloze.predict.corrector import Corrector
from cloze.predict.search.index import open_index
from cloze.serve.models import load_models
from cloze.serve.outcomes import Metrics
from cloze.serve.settings import ServiceSettings
from cloze.tasks.correction.kind import CorrectionSettings
from tests.model.made import model_folder, saved
from tests.serve.conftest import error_of

TEXTS = ["the cat sat on a mat.", "a dog ran", "猫坐", ""]
Models = dict[str, Model]


def test_embed(served: Running, models: Models) -> None:
    answer = served.post("/embed", {"texts": TEXTS, "model": "base"}).json()
    np.testing.assert_allclose(answer["vectors"], models["base"].embed(TEXTS), atol=1e-5)
    assert answer["model"] == "base"
    lengths = [len(models["base"].tokenizer(text).ids) for text in TEXTS]
    assert answer["usage"] == {"tokens": sum(lengths), "truncated": 0, "unknown": 0}


def test_embed_options(served: Running, models: Models) -> None:
    request = {"texts": TEXTS[:2], "pairs": TEXTS[1:3], "pooling": "mean_max", "layer": 1, "model": "base"}
    answer = served.post("/embed", request).json()
    expected = models["base"].embed(TEXTS[:2], TEXTS[1:3], pooling="mean_max", layer=1)
    np.testing.assert_allclose(answer["vectors"], expected, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean_words", "pooler"])
def test_embed_poolings_in_one_batch(pooling: Any, served: Running, models: Models) -> None:
    texts = ["", *TEXTS]
    vectors = served.post("/embed", {"texts": texts, "pooling": pooling, "model": "base"}).json()["vectors"]
    np.testing.assert_allclose(vectors, models["base"].embed(texts, pooling=pooling), atol=1e-5)


def test_embed_by_a_pooler_that_is_not_there(served: Running) -> None:
    answer = served.post("/embed", {"texts": TEXTS, "pooling": "pooler", "model": "tags"})
    message = "pooling 'pooler' needs a pooler, which this model does not have; use cls or mean"
    assert error_of(answer) == (400, "unanswerable", message)


def test_truncation_is_reported(served: Running) -> None:
    assert served.post("/embed", {"texts": ["cat " * 50, "cat"]}).json()["usage"]["truncated"] == 1


def test_unknown_tokens_are_counted(served: Running) -> None:
    texts = ["☃ the cat", "☂ ☁"]
    assert served.post("/embed", {"texts": texts}).json()["usage"]["unknown"] == 3
    assert served.post("/rerank", {"query": "a dog", "texts": texts}).json()["usage"]["unknown"] == 3
    assert served.post("/v1/embeddings", {"input": texts, "model": "base"}).json()["usage"]["unknown"] == 3
    assert served.post("/tag", {"texts": texts}).json()["usage"]["unknown"] == 3
    assert served.post("/answer", {"question": texts[0], "context": texts[1]}).json()["usage"]["unknown"] == 3
    assert served.post("/correct", {"texts": texts}).json()["usage"]["unknown"] == 3


@pytest.mark.parametrize("how", ["cut", "head-tail", "windows"])
def test_embed_long_texts(how: Any, served: Running, models: Models) -> None:
    texts = ["the cat sat on a mat. a dog ran. " * 8, "cat"]
    answer = served.post("/embed", {"texts": texts, "long_texts": how, "model": "base"}).json()
    np.testing.assert_allclose(answer["vectors"], models["base"].embed(texts, long_texts=how), atol=1e-5)
    assert answer["usage"]["truncated"] == (how != "windows")
    assert (answer["usage"]["tokens"] > 2 * 32) == (how == "windows")


def test_embed_several_layers(served: Running, models: Models) -> None:
    answer = served.post("/embed", {"texts": TEXTS, "layer": [1, -1], "model": "base"}).json()
    np.testing.assert_allclose(answer["vectors"], models["base"].embed(TEXTS, layer=[1, -1]), atol=1e-5)


@pytest.mark.parametrize(("path", "key"), [("/v1/embeddings", "input"), ("/encode", "texts")])
def test_third_party_clients_see_truncation(path: str, key: str, served: Running) -> None:
    answer = served.post(path, {key: ["cat " * 50, "cat", "dog " * 50]})
    assert answer.headers["x-cloze-truncated"] == "2"
    assert answer.json().get("usage", {"truncated": 2})["truncated"] == 2
    assert served.post(path, {key: ["cat"]}).headers["x-cloze-truncated"] == "0"


def test_rerank(served: Running, models: Models) -> None:
    answer = served.post("/rerank", {"query": "a cat", "texts": TEXTS[:3], "model": "base"}).json()
    vectors = models["base"].embed(["a cat", *TEXTS[:3]])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = unit[1:] @ unit[0]
    assert [one["index"] for one in answer["results"]] == list(np.argsort(-scores))
    np.testing.assert_allclose([one["score"] for one in answer["results"]], np.sort(scores)[::-1], atol=1e-5)
    assert len(served.post("/rerank", {"query": "a cat", "texts": TEXTS, "top": 1}).json()["results"]) == 1


def test_fill(served: Running, models: Models) -> None:
    text = "the [MASK] sat on a [MASK]."
    answer = served.post("/fill", {"texts": text, "top": 3}).json()
    expected = models["base"].fill(text, 3)
    assert [[word["token"] for word in blank] for blank in answer["results"][0]] == [
        [word.token for word in blank] for blank in expected
    ]


def test_fill_together(served: Running, models: Models) -> None:
    texts = ["the [MASK] sat on a [MASK].", "a [MASK]"]
    answer = served.post("/fill", {"texts": texts, "top": 3, "joint": True}).json()
    for ways, text in zip(answer["results"], texts, strict=True):
        expected = models["base"].fill_together(text, 3)
        assert [(way["tokens"], way["text"]) for way in ways] == [(list(way.tokens), way.text) for way in expected]
        np.testing.assert_allclose(
            [way["log_probability"] for way in ways], [way.log_probability for way in expected], atol=1e-4
        )
    # No more words are returned than the vocabulary has.
    (ways,) = served.post("/fill", {"texts": "[MASK]", "top": 100, "joint": True}).json()["results"]
    assert len(ways) == models["base"].tokenizer.size - 1


@pytest.mark.parametrize("name", ["labels", "several", "number"])
def test_classify(name: str, served: Running, models: Models) -> None:
    answer = served.post("/classify", {"texts": TEXTS, "model": name}).json()["results"]
    if name == "number":
        np.testing.assert_allclose([one["value"] for one in answer], models[name].regress(TEXTS), atol=1e-5)
        return
    send_requests = models[name].classify_all if name == "several" else models[name].classify
    expected = [asdict(one) for one in send_requests(TEXTS)]
    for ours, theirs in zip(answer, expected, strict=True):
        assert ours.get("label") == theirs.get("label")
        np.testing.assert_allclose(
            list(ours["probabilities"].values()), list(theirs["probabilities"].values()), atol=1e-5
        )


def test_score(served: Running, models: Models) -> None:
    answer = served.post("/score", {"texts": TEXTS, "tokens": True}).json()
    expected = models["base"].score(TEXTS)
    for ours, theirs in zip(answer["results"], expected, strict=True):
        assert [one["token"] for one in ours["tokens"]] == list(theirs.tokens)
        values = [one["log_probability"] for one in ours["tokens"]]
        np.testing.assert_allclose(values, theirs.log_probabilities, atol=1e-4)
        assert ours["log_probability"] == pytest.approx(theirs.total, abs=1e-3)
        if theirs.tokens:
            assert ours["perplexity"] == pytest.approx(theirs.perplexity, rel=1e-3)
    # A text without tokens has no score, so it is not the most likely one.
    assert [answer["results"][3][name] for name in ("perplexity", "loss_per_word", "loss_per_character")] == [None] * 3
    lengths = [len(models["base"].tokenizer(text).ids) for text in TEXTS]
    assert answer["usage"]["tokens"] == sum((length - 2) * length for length in lengths)  # one pass per token
    assert "tokens" not in served.post("/score", {"texts": TEXTS[0]}).json()["results"][0]


def test_follows(served: Running, models: Models) -> None:
    firsts, seconds = TEXTS[:3], TEXTS[1:]
    answer = served.post("/follows", {"texts": firsts, "pairs": seconds, "model": "base"}).json()
    np.testing.assert_allclose(answer["probabilities"], models["base"].follows_all(firsts, seconds), atol=1e-5)
    one = served.post("/follows", {"texts": firsts[0], "pairs": seconds[0]}).json()
    assert one["probabilities"] == pytest.approx(answer["probabilities"][:1], abs=1e-5)
    assert error_of(served.post("/follows", {"texts": firsts}))[2] == "pairs is missing"
    refused = error_of(served.post("/follows", {"texts": firsts, "pairs": seconds, "model": "labels"}))
    assert refused[:2] == (400, "unable")


def test_head_is_get_without_the_body(served: Running) -> None:
    for path, status in (("/health", 200), ("/", 200), ("/info", 200), ("/ready", 200), ("/nothing", 404)):
        with served.blocking() as send_requests:
            answer = send_requests("HEAD", path)
        full = served.get(path)
        assert (answer.status_code, answer.content) == (status, b"")
        assert answer.headers["content-type"] == full.headers["content-type"]
        assert answer.headers["content-length"] == str(len(full.content))
    refused = served.run(lambda client: client.head("/embed"))
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


def test_tag(served: Running, models: Models) -> None:
    words = [["the", "cat"], ["a", "dog", "ran"]]
    for texts in (TEXTS[:3], words):
        answer = served.post("/tag", {"texts": texts}).json()["results"]
        expected: Any = models["tags"].tag(texts)
        assert [[word["tag"] for word in one["words"]] for one in answer] == [
            [word.tag for word in one.words] for one in expected
        ]


def test_answer(served: Running, models: Models) -> None:
    request = {"question": "the cat", "context": "the cat sat on a mat. a dog ran.", "top": 2}
    answer = served.post("/answer", request).json()["answers"]
    expected = models["spans"].answer("the cat", "the cat sat on a mat. a dog ran.", 2)
    assert [one["text"] for one in answer] == [one.text for one in expected]


def test_choose(served: Running, models: Models) -> None:
    options = ["sat", "ran on a mat", "dog"]
    answer = served.post("/choose", {"prompt": "the cat", "options": options}).json()["options"]
    assert [one["index"] for one in answer] == [one.index for one in models["options"].choose("the cat", options)]


def test_correct(served: Running, models: Models) -> None:
    texts = ["the cat sat on a mat.", "dog dog"]
    answer = served.post("/correct", {"texts": texts}).json()["results"]
    expected = models["base"].correct(texts)
    assert [(one["source"], one["target"]) for one in answer] == [(one.source, one.target) for one in expected]
    assert [one["errors"] for one in answer] == [list(map(list, one.errors)) for one in expected]
    cannot = "model 'tags' cannot correct (its heads: token); models that can: base"
    assert error_of(served.post("/correct", {"texts": "a", "model": "tags"})) == (400, "unable", cannot)


def test_correct_options(served: Running, models: Models) -> None:
    texts = ["the cats sat on a matt.", "teh dogs ran"]
    every = Corrector(models["base"], CorrectionSettings(threshold=0.0)).correct(texts)
    assert all(one.errors for one in every)
    answer = served.post("/correct", {"texts": texts, "threshold": 0.0}).json()["results"]
    assert [one["target"] for one in answer] == [one.target for one in every]
    assert all(not one["errors"] for one in served.post("/correct", {"texts": texts, "threshold": 1}).json()["results"])
    kept = [every[0].errors[0][0], every[1].errors[0][0]]
    answer = served.post("/correct", {"texts": texts, "threshold": 0.0, "protected": kept}).json()["results"]
    assert not {wrong for one in answer for wrong, _, _ in one["errors"]} & set(kept)
    # The settings of one request do not affect the next.
    assert [one["target"] for one in served.post("/correct", {"texts": texts}).json()["results"]] == [
        one.target for one in models["base"].correct(texts)
    ]


def test_tokenize(served: Running, models: Models) -> None:
    answer = served.post("/tokenize", {"texts": TEXTS, "pairs": TEXTS}).json()["results"]
    for one, text in zip(answer, TEXTS, strict=True):
        encoding = models["base"].tokenizer(text, text)
        assert (one["ids"], one["tokens"], one["segments"]) == (encoding.ids, encoding.tokens, encoding.segments)
        assert [tuple(offset) for offset in one["offsets"]] == encoding.offsets


def test_concurrent_requests_get_their_own_results(served: Running, models: Models) -> None:
    texts = [" ".join(["cat", "dog", "mat", "sat"][: 1 + index % 4]) + f" word{index % 30}" for index in range(120)]
    expected = models["base"].embed(texts)

    async def send_requests(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(*(client.post("/embed", json={"texts": text}) for text in texts))

    found = [answer.json()["vectors"][0] for answer in served.run(send_requests)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/embed", {"texts": []}, "no text was given; send at least one"),
        ("/rerank", {"query": "x", "texts": []}, "no text was given; send at least one"),
        ("/embed", {"texts": ["a"], "pairs": ["b", "c"]}, "1 texts, but 2 pairs; expected one for each"),
        ("/embed", {"txts": "a"}, "texts is missing"),
        ("/embed", {"texts": "a", "txts": "a"}, "unknown key 'txts'; did you mean 'texts'?"),
        ("/embed", {"texts": "a", "layer": 9}, "no layer 9; expected 0 (embeddings) to 3, or -1 for the last"),
        ("/embed", {"texts": "a", "pooling": "meen"}, "unknown pooling 'meen'; did you mean 'mean'?"),
        ("/fill", {"texts": "a cat"}, "no [MASK] in 'a cat'; write [MASK] in place of the missing word"),
        ("/fill", {"texts": "a cat", "top": 0}, "top: Input should be greater than or equal to 1"),
        (
            "/fill",
            {"texts": "[MASK]", "model": "tags"},
            "model 'tags' cannot fill (its heads: token); models that can: base",
        ),
        ("/embed", {"texts": "a", "layer": []}, "no layer was given; -1 is the last, and several are averaged"),
        ("/embed", {"texts": "a", "layer": [1, 9]}, "no layer 9; expected 0 (embeddings) to 3"),
        ("/embed", {"texts": "a", "long_texts": "whole"}, "long_texts: Input should be 'cut', 'head-tail' or 'w"),
        ("/correct", {"texts": "a", "threshold": 2}, "threshold: Input should be less than or equal to 1"),
        ("/correct", {"texts": "a", "protected": ["a"] * 101}, "protected: List should have at most 100 items"),
        ("/fill", {"texts": "a cat", "joint": True}, "no [MASK] in 'a cat'; write [MASK] in place of"),
        ("/choose", {"prompt": "a", "options": ["b"]}, "options: List should have at least 2 items"),
        ("/tag", {"texts": [["a", ""]]}, "word 2 of sentence 1 is empty; leave it out"),
        ("/embed", [], "the body: Input should be an object"),
    ],
)
def test_unsupported_requests_are_reported(path: str, body: Any, message: str, served: Running) -> None:
    status, _, told = error_of(served.post(path, body))
    assert status == 400
    assert told.startswith(message)


def test_a_bad_text_fails_alone(served: Running) -> None:
    async def send_requests(client: httpx.AsyncClient) -> list[httpx.Response]:
        texts = ["a [MASK]", "no blank", "the [MASK]"] * 5
        return await asyncio.gather(*(client.post("/fill", json={"texts": text}) for text in texts))

    assert [answer.status_code for answer in served.run(send_requests)] == [200, 400, 200] * 5


def test_unknown_models(served: Running) -> None:
    status, kind, told = error_of(served.post("/embed", {"texts": "a", "model": "bse"}))
    assert (status, kind, told) == (404, "unknown_model", "no model is called 'bse'; did you mean 'base'?")


def test_paths_and_methods_that_are_not_there(served: Running) -> None:
    assert error_of(served.get("/nothing"))[:2] == (404, "not_found")
    assert error_of(served.get("/embed"))[:2] == (405, "method_not_allowed")


def test_search(served: Running, index: str) -> None:
    expected = open_index(index).search("a dog ran", 5)
    answer = served.post("/search", {"query": "a dog ran", "top": 5}).json()
    assert [(one["id"], one["passage"], one["start"]) for one in answer["results"]] == [
        (hit.id, hit.passage, hit.start) for hit in expected
    ]
    np.testing.assert_allclose([one["score"] for one in answer["results"]], [hit.score for hit in expected], atol=1e-6)
    first = answer["results"][0]
    assert {first["passage"][slice(*place)] for place in first["highlights"]} <= {"dog", "ran"}
    assert (answer["model"], answer["usage"]["tokens"]) == ("base", 5)
    assert first["fields"] == expected[0].fields
    words = served.post("/search", {"query": "dog", "mode": "bm25", "where": ["year>=2038"]}).json()
    assert {one["id"] for one in words["results"]} <= {"d38", "d39"}
    assert all(one["cosine"] is None for one in words["results"])


def test_searches_are_not_swapped(served: Running, index: str) -> None:
    draw = random.Random(3)
    queries = [" ".join(draw.choices(["the", "cat", "sat", "dog", "ran", "mat"], k=5)) for _ in range(60)]
    expected = open_index(index).search(queries, 3, mode="vectors")

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        bodies = [{"query": query, "top": 3, "mode": "vectors"} for query in queries]
        return await asyncio.gather(*(client.post("/search", json=body) for body in bodies))

    for response, hits in zip(served.run(ask), expected, strict=True):
        cosines = [one["cosine"] for one in response.json()["results"]]
        np.testing.assert_allclose(cosines, np.array([hit.cosine for hit in hits], float), atol=1e-5)


def test_search_sees_changes(folders: dict[str, str], tmp_path: Path) -> None:
    changing = open_index(made_index(tmp_path / "index", folders["base"]))
    settings = ServiceSettings({"base": folders["base"]}, index=str(changing.path))
    with running(settings) as service:
        before = service.post("/search", {"query": "dog", "mode": "vectors"}).json()["results"][0]["id"]
        changing.delete([before])
        assert service.post("/search", {"query": "dog", "mode": "vectors"}).json()["results"][0]["id"] != before


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (
            {"query": "x", "where": ["yaer=1"]},
            400,
            "where is 'yaer=1', but the documents have no field 'yaer'",
        ),
        ({"query": "x", "where": ["year"]}, 400, "where is 'year'; expected a condition such as year>=2020"),
        ({"query": "x", "mode": "both"}, 400, "mode: Input should be 'hybrid', 'vectors' or 'bm25'"),
        ({"query": "x", "top": 1000}, 400, "top: Input should be less than or equal to 100"),
        ({"query": "x", "model": "labels"}, 400, "model 'labels' cannot search"),
        ({"query": "x" * 6000}, 413, "6000 characters in one request, but at most 5000 are allowed"),
        ({"query": "x" * 6000, "mode": "bm25"}, 413, "6000 characters in one request, but at most 5000 are allowed"),
    ],
)
def test_bad_searches(body: dict[str, Any], status: int, message: str, served: Running) -> None:
    found = error_of(served.post("/search", body))
    assert found[0] == status
    assert message in found[2]


def test_searching_without_an_index(folders: dict[str, str], index: str) -> None:
    with running(ServiceSettings({"base": folders["base"]})) as service:
        assert error_of(service.post("/search", {"query": "x"}))[2] == (
            "this service has no index to search; start it with --index INDEX"
        )
    with pytest.raises(CheckpointError, match=r"was built with .*base, but labels differs from it"):
        load_models(ServiceSettings({"labels": folders["labels"]}, index=index), Metrics())


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_rerank_of_other_services(path: str, served: Running) -> None:
    ours = served.post("/rerank", {"query": "a cat", "texts": TEXTS[:3]}).json()["results"]
    answer = served.post(path, {"query": "a cat", "documents": TEXTS[:3], "truncate": True}).json()
    assert [(one["index"], one["relevance_score"], one["document"]["text"]) for one in answer["results"]] == [
        (one["index"], one["score"], one["text"]) for one in ours
    ]
    assert answer["usage"]["total_tokens"] > 0
    short = {"query": "a cat", "documents": [{"text": text} for text in TEXTS[:3]], "top_n": 1}
    short_answer = served.post(path, short | {"return_documents": False}).json()
    assert short_answer["results"] == [{"index": ours[0]["index"], "relevance_score": ours[0]["score"]}]
    assert error_of(served.post(path, {"query": "x", "documents": []}))[2] == "no text was given; send at least one"


@pytest.mark.parametrize("path", ["/rerank", "/v2/rerank"])
def test_rerank_with_a_cross_encoder(path: str, folders: dict[str, str], tmp_path: Path) -> None:
    saved(model_folder(["sequence"], labels=1), tmp_path / "cross")
    expected = load(tmp_path / "cross").rerank("a cat", TEXTS[:3])
    with running(ServiceSettings({"base": folders["base"], "cross": str(tmp_path / "cross")})) as service:
        documents = "texts" if path == "/rerank" else "documents"
        answer = service.post(path, {"query": "a cat", documents: TEXTS[:3], "model": "cross"}).json()
        assert answer["model"] == "cross"
        assert service.post(path, {"query": "a cat", documents: TEXTS[:3]}).json()["model"] == "base"
    score = "score" if path == "/rerank" else "relevance_score"
    assert [one["index"] for one in answer["results"]] == [one.index for one in expected]
    np.testing.assert_allclose([one[score] for one in answer["results"]], [one.score for one in expected], atol=1e-5)
