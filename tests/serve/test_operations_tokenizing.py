"""Tokenization in the service: once per text, long texts off the event loop, and token counts that match the work."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from torture.services import Running, running

from cloze.checkpoint import TaskLabels
from cloze.predict import Model, load
from cloze.serve.batcher import AbandonedError
from cloze.serve.settings import Limits, ServiceSettings
from cloze.serve.tokenization import INLINE_CHARACTERS
from cloze.tasks.answering.examples import read_contexts
from cloze.text import Tokenizer
from tests.model.made import SMALL, model_folder, saved
from tests.serve.conftest import error_of

LONG = "the cat sat on a mat. a dog ran. " * (INLINE_CHARACTERS // 30 + 1)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record every tokenized text with the thread that tokenizes it."""
    found: list[tuple[str, str]] = []

    def watch(name: str) -> None:
        original = getattr(Tokenizer, name)

        def recording(self: Tokenizer, texts: Any, *arguments: Any) -> Any:
            if list(texts) != ["Are you there?"]:  # the probe text of an idle model
                found.extend((text, threading.current_thread().name) for text in texts)
            return original(self, texts, *arguments)

        monkeypatch.setattr(Tokenizer, name, recording)

    watch("_encode_texts")
    watch("encode_ids")
    return found


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"texts": ["the cat", "a dog"]}),
        ("/embed", {"texts": ["the cat"], "pairs": ["a dog"]}),
        ("/v1/embeddings", {"input": ["the cat", "a dog"]}),
        ("/rerank", {"query": "the cat", "texts": ["a dog"]}),
        ("/classify", {"texts": ["the cat", "a dog"]}),
        ("/fill", {"texts": ["the [MASK]", "a [MASK]"]}),
    ],
)
def test_texts_are_read_once(path: str, body: Any, served: Running, readings: list[tuple[str, str]]) -> None:
    assert served.post(path, body).status_code == 200
    assert len(readings) == len({text for text, _ in readings}) == 2


@pytest.mark.parametrize("path", ["/embed", "/fill", "/classify"])
def test_long_texts_are_tokenized_in_separate_threads(
    path: str, served: Running, readings: list[tuple[str, str]]
) -> None:
    assert served.post(path, {"texts": f"[MASK] {LONG}"}).status_code == 200
    assert [thread.split("_")[0] for _, thread in readings] == ["tokenizer"]


def test_pairs_and_single_texts_share_batches(served: Running, models: dict[str, Model]) -> None:
    single, both = models["base"].embed(["the cat"])[0], models["base"].embed(["the cat"], ["a dog"])[0]

    async def send_requests(client: httpx.AsyncClient) -> list[httpx.Response]:
        bodies = [{"texts": "the cat"}, {"texts": "the cat", "pairs": "a dog"}] * 10
        return await asyncio.gather(*(client.post("/embed", json=body) for body in bodies))

    found = [answer.json()["vectors"][0] for answer in served.run(send_requests)]
    np.testing.assert_allclose(found, [single, both] * 10, atol=1e-5)


def test_several_texts_are_filled_together(served: Running, models: dict[str, Model]) -> None:
    texts = ["the [MASK] sat on a [MASK].", "[MASK]", "a dog [MASK] on the mat, word7 word8"]
    answer = served.post("/fill", {"texts": texts, "top": 3, "model": "base"}).json()
    lengths = [len(models["base"].tokenizer(text, read_mask=True).ids) for text in texts]
    assert answer["usage"] == {"tokens": sum(lengths), "truncated": 0, "unknown": 0}
    for ours, text in zip(answer["results"], texts, strict=True):
        expected = models["base"].fill(text, 3)
        assert [[word["token"] for word in blank] for blank in ours] == [
            [word.token for word in blank] for blank in expected
        ]
    cut = served.post("/fill", {"texts": f"[MASK] {LONG}", "model": "base"}).json()["usage"]
    assert cut == {"tokens": models["base"].tokenizer.max_length, "truncated": 1, "unknown": 0}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """Models with windows for long texts, with a single segment, and with character tags."""
    folder = tmp_path_factory.mktemp("others")
    task = TaskLabels("classify", ("bad", "good"), long_texts="windows")
    saved(model_folder(["sequence"], task=task), folder / "windows")
    saved(model_folder(config=replace(SMALL, segments=1)), folder / "single")
    tags = TaskLabels("tag", ("B-X", "I-X", "O"), characters=True)
    saved(model_folder(["token"], labels=3, task=tags), folder / "characters")
    settings = ServiceSettings({name: str(folder / name) for name in ("windows", "single", "characters")})
    with running(settings) as found:
        yield found, folder


def test_a_tagger_of_characters_reads_and_counts_characters(others: tuple[Running, Path]) -> None:
    served, _ = others
    answer = served.post("/tag", {"texts": ["猫 iPhone12"], "model": "characters"}).json()
    assert [word["text"] for word in answer["results"][0]["words"]] == list("猫iPhone12")
    assert answer["usage"]["tokens"] == len("猫iPhone12") + 2


def test_windows_are_weighed_as_they_are_computed(others: tuple[Running, Path]) -> None:
    service, folder = others
    model = load(folder / "windows")
    answer = service.post("/classify", {"texts": [LONG, "a cat"], "model": "windows"}).json()
    windows = model._encode_long([LONG, "a cat"], None, "windows")
    assert len(windows[0]) > 2
    assert answer["usage"] == {
        "tokens": sum(len(one.ids) for text in windows for one in text),
        "truncated": 0,
        "unknown": 0,
    }
    for ours, theirs in zip(answer["results"], model.classify([LONG, "a cat"]), strict=True):
        assert ours["label"] == theirs.label
        assert ours["probability"] == pytest.approx(theirs.probability, abs=1e-5)


def test_pairs_for_a_model_of_single_texts(others: tuple[Running, Path]) -> None:
    answer = others[0].post("/embed", {"texts": "a", "pairs": "b", "model": "single"})
    message = "this model has only one segment type and does not support pairs of texts; give single texts"
    assert error_of(answer) == (400, "unanswerable", message)


def test_questions_are_weighed_with_all_windows_of_their_texts(served: Running, models: dict[str, Model]) -> None:
    questions, contexts = ["who sat?", "where " * 100, "who?"], [LONG, "a cat sat.", ""]
    readings = list(read_contexts(models["spans"].tokenizer, questions, contexts))
    assert len(readings[0].windows) > 2
    for question, context, reading in zip(questions, contexts, readings, strict=True):
        usage = served.post("/answer", {"question": question, "context": context}).json()["usage"]
        assert usage["tokens"] == sum(len(window.encoding.ids) for window in reading.windows)
        assert usage["truncated"] == (question == questions[1])


@pytest.mark.parametrize("threshold", [None, 0.5], ids=["hidden", "seen"])
def test_token_count_of_corrections_includes_all_passes(
    threshold: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token count of corrections includes a pass per split word, even if the text is otherwise not masked."""
    folder = saved(replace(model_folder(["mlm"]), correcting=threshold), tmp_path / "base")
    model, computed, texts = load(folder), [], ["cats dogs mats cats", "the cats sat on a mat " * 6, "", "."]
    run = model.run

    def counted(encodings: Any, step: Any) -> Any:
        computed.append(sum(len(one.ids) for one in encodings))
        return run(encodings, step)

    monkeypatch.setattr(model, "run", counted)
    with running(ServiceSettings({"base": str(folder)})) as service:
        for text in texts:
            computed.clear()
            model.correct([text])
            tokens = service.post("/correct", {"texts": text}).json()["usage"]["tokens"]
            assert sum(computed) <= tokens
            assert tokens > 0  # jobs without tokens would never be scheduled
            if text == texts[0]:
                assert tokens < 1.25 * sum(computed)


def test_many_passes_end_at_the_deadline(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Correction needs one pass per token; it stops at its deadline so that other requests need not wait."""
    passes = []

    def slow(model: Model, windows: Any, *rest: Any) -> Any:
        for _ in range(1000):
            passes.append(1)
            time.sleep(0.01)
            assert model._before_batch is not None
            model._before_batch()
        return []

    monkeypatch.setattr("cloze.predict.corrector.Corrector.correct", lambda self, texts: slow(self._model, texts))
    limits = Limits(timeout=2.0)  # long enough for one pass on a busy machine
    with running(ServiceSettings({"base": folders["base"]}, limits=limits)) as service:
        assert service.post("/correct", {"texts": "the cat"}).status_code == 408
        assert service.post("/embed", {"texts": "the cat"}).status_code == 200
    assert len(passes) < 500


def test_computation_may_detect_the_deadline_first(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*_: Any) -> Any:
        raise AbandonedError("nobody waits for this any more")

    monkeypatch.setattr("cloze.predict.corrector.Corrector.correct", give_up)
    with running(ServiceSettings({"base": folders["base"]}, limits=Limits(timeout=60.0))) as service:
        refused = service.post("/correct", {"texts": "the cat"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (408, "deadline")
