"""Operations: NaN results, and the heads that each operation requires."""

import time
from typing import Any

import numpy as np
import pytest
import torch

from cloze.errors import RequestError
from cloze.predict import Model, load
from cloze.predict.preprocessing import read_texts
from cloze.serve.batcher import Batcher
from cloze.serve.operations import ModelWorker, abilities, is_finite, run_operation
from cloze.serve.outcomes import Metrics, ModelFailedError
from cloze.serve.queue import BatchKey, Job
from cloze.threads import AdaptiveThreads, request_threads
from tests.model.made import model_folder

# Operations that need no head.
ANY = {"embed", "inspect"}


@pytest.mark.parametrize(
    ("result", "finite"),
    [
        (np.ones(3), True),
        (np.array([1.0, np.nan]), False),
        ({"a": 1.0, "b": [{"c": float("inf")}]}, False),
        ({"label": "nan", "probabilities": {"x": 0.5}, "count": 3, "none": None}, True),
        ([(1.0, 2.0), ("a", float("-inf"))], False),
    ],
)
def test_numbers_are_looked_for_everywhere(result: Any, finite: bool) -> None:
    assert is_finite(result) is finite


def test_a_model_without_numbers_fails(folders: dict[str, str]) -> None:
    broken = load(folders["base"])
    with torch.no_grad():
        next(broken.bert.parameters())[:] = float("nan")
    results = run_operation(broken, BatchKey("embed"), [("a cat", read_texts(broken.tokenizer, ["a cat"])[0])] * 2)
    assert [type(result) for result in results] == [ModelFailedError, ModelFailedError]


def test_service_follows_the_load_with_its_threads(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    model, now, counts = load(folders["base"]), 0.0, list[int]()
    cost = {1: 0.1, 2: 0.8}  # seconds per batch when another process occupies a core

    def clock() -> float:
        nonlocal now
        counts.append(torch.get_num_threads())
        now += cost[counts[-1]]
        return now

    monkeypatch.setattr(model, "_threads", AdaptiveThreads(clock))
    worker = ModelWorker(model)
    request_threads(None)
    torch.set_num_threads(2)  # applies to threads that start afterwards
    batcher = Batcher("base", worker.run_batch, worker.probe, Metrics(), bound=1000, budget=100)
    batcher.start()
    (text,) = read_texts(model.tokenizer, ["a cat"])

    def embed(times: int) -> list[Any]:
        jobs = []
        for _ in range(times):
            jobs.append(Job(BatchKey("embed"), [("a cat", text)], [3], time.monotonic() + 30))
            batcher.submit(jobs[-1])
            jobs[-1].future.result(10)
        return [job.future.result()[0] for job in jobs]

    vectors = embed(30)
    assert counts[0] == 2
    assert counts[-20:].count(1) >= 18
    cost |= {2: 0.05}  # the other process has ended
    vectors += embed(200)
    assert counts[-40:].count(2) >= 36  # a trial has two batches, and each reads the clock twice
    assert batcher.drain(10)
    torch.set_num_threads(1)
    np.testing.assert_allclose(vectors, np.tile(vectors[0], (230, 1)), rtol=1e-5, atol=1e-6)


def test_labels_that_mean_nothing_are_refused() -> None:
    unnamed = Model(model_folder(["sequence"]))
    message = "^this model's folder does not define its labels; fine-tune it with cloze$"
    with pytest.raises(RequestError, match=message):
        run_operation(unnamed, BatchKey("classify"), [("a cat", read_texts(unnamed.tokenizer, ["a cat"])[0])])


def test_heads_allow(models: dict[str, Model]) -> None:
    found = {name: abilities(model) - ANY for name, model in models.items()}
    assert found == {
        "base": {"fill", "correct", "score", "follows"},
        "labels": {"classify"},
        "several": {"classify"},
        "number": {"classify", "rerank"},
        "tags": {"tag"},
        "spans": {"answer"},
        "options": {"choose"},
    }
