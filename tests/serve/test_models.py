"""Several models, and many adapters on one base, selected by name and used concurrently."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from torture.services import Running, running

from cloze.checkpoint import EmbeddingSettings, load_folder, save_folder
from cloze.model.surgery import with_heads
from cloze.predict import Model, load
from cloze.predict.preprocessing import read_texts
from cloze.serve.models import ServedModel
from cloze.serve.operations import ModelWorker
from cloze.serve.queue import BatchKey
from cloze.serve.settings import ServiceSettings
from tests.checkpoint.test_adapter_folder import HOULSBY, LORA, make_adapter, make_base
from tests.model.made import model_folder
from tests.serve.conftest import SMALL

TEXTS = ["the cat sat on a mat.", "dogs ran", ""]
ADAPTERS = {"houlsby": HOULSBY, "lora": LORA}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_base(tmp_path_factory.mktemp("adapters") / "base")
    for name, attachment in ADAPTERS.items():
        make_adapter(folder, folder.parent / name / "model", attachment)
    return folder


@pytest.fixture(scope="module")
def adapted(base: Path, folders: dict[str, str]) -> Iterator[Running]:
    """A model without adapters, and the base of the adapters."""
    adapters = {name: str(base.parent / name) for name in ADAPTERS}
    with running(ServiceSettings({"tags": folders["tags"], "base": str(base)}, adapters)) as found:
        yield found


def test_interleaved_adapters_give_the_results_of_each_alone(adapted: Running, base: Path) -> None:
    alone = {name: load(base.parent / name).classify(TEXTS) for name in ADAPTERS}
    blank = load(base).fill("the [MASK] sat.")[0][0].token

    async def send_requests(client: httpx.AsyncClient) -> list[httpx.Response]:
        requests = [client.post("/classify", json={"texts": TEXTS, "model": name}) for name in [*ADAPTERS] * 5]
        requests += [client.post("/fill", json={"texts": "the [MASK] sat.", "model": "base"}) for _ in range(5)]
        return await asyncio.gather(*requests)

    answers = [answer.json()["results"] for answer in adapted.run(send_requests)]
    for name, answer in zip([*ADAPTERS] * 5, answers[:10], strict=True):
        for ours, theirs in zip(answer, alone[name], strict=True):
            assert ours["label"] == theirs.label
            np.testing.assert_allclose(
                list(ours["probabilities"].values()), list(theirs.probabilities.values()), atol=1e-5
            )
    assert {answer[0][0][0]["token"] for answer in answers[10:]} == {blank}


def test_adapters_share_the_thread_of_their_base(adapted: Running) -> None:
    served: dict[str, ServedModel] = adapted.service.models.served
    assert len(adapted.service.models.batchers) == 2
    assert served["lora"].batcher is served["base"].batcher is not served["tags"].batcher


def test_adapters_are_listed_with_their_base(adapted: Running) -> None:
    listed = adapted.get("/v1/models").json()["data"]
    assert {one["id"]: one["parent"] for one in listed} == {
        "tags": None,
        "base": None,
        "houlsby": "base",
        "lora": "base",
    }


def test_served_models_are_listed(adapted: Running) -> None:
    models_info = {one["name"]: one for one in adapted.get("/info").json()["models"]}
    assert {"embed", "tag"} <= set(models_info["tags"]["does"])
    assert "fill" not in models_info["tags"]["does"]
    assert {"classify", "embed"} <= set(models_info["lora"]["does"])
    assert models_info["base"]["width"] == 16
    assert models_info["base"]["precision"] == "fp32"


def test_the_capable_model_is_the_default(adapted: Running) -> None:
    assert adapted.post("/embed", {"texts": "cat"}).json()["model"] == "tags"
    assert adapted.post("/fill", {"texts": "a [MASK]"}).json()["model"] == "base"
    assert adapted.post("/classify", {"texts": "cat"}).json()["model"] == "houlsby"
    answer = adapted.post("/choose", {"prompt": "a", "options": ["b", "c"]})
    assert (
        answer.json()["error"]["message"]
        == "none of the served models (tags, base, houlsby, lora) can choose; serve one that was trained for it"
    )


def test_unknown_names_are_answered_with_those_that_exist(adapted: Running) -> None:
    answer = adapted.post("/embed", {"texts": "cat", "model": "zzz"})
    expected = "no model is called 'zzz'; choose one of: tags, base, houlsby, lora"
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, expected)


def test_models_made_for_vectors_embed(folders: dict[str, str], tmp_path: Path) -> None:
    base = load_folder(Path(folders["base"]))
    similar = replace(base, embedding=EmbeddingSettings("mean", normalize=True))
    encoder = replace(base, model=with_heads(base.model, (), keep=False, seed=0), embedding=EmbeddingSettings("cls"))
    for name, contents in (("similar", similar), ("encoder", encoder)):
        save_folder(contents, tmp_path / name)
    named = {"tags": folders["tags"], "base": folders["base"]}
    for name in ("similar", "encoder"):
        with running(ServiceSettings(named | {name: str(tmp_path / name)}, limits=SMALL)) as service:
            assert service.post("/embed", {"texts": "cat"}).json()["model"] == name
            assert service.post("/rerank", {"query": "cat", "texts": ["dog"]}).json()["model"] == name
            assert service.post("/tokenize", {"texts": "cat"}).json()["model"] == name
            assert service.post("/embed", {"texts": "cat", "model": "tags"}).json()["model"] == "tags"
            listed = {one["name"]: one["for_vectors"] for one in service.get("/info").json()["models"]}
            assert listed == {"tags": False, "base": False, name: True}


def test_readiness_and_liveness(adapted: Running) -> None:
    assert adapted.get("/health").json() == {"status": "ok"}
    assert adapted.get("/ready").json() == {"ready": True, "draining": False}
    adapted.service.draining = True
    answer = adapted.get("/ready")
    assert (answer.status_code, answer.headers["connection"]) == (503, "close")
    adapted.service.draining = False


def test_an_interrupted_batch_keeps_its_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch keeps its adapter when a batch with another adapter is computed between its forward passes."""
    model = Model(model_folder())
    used: list[str | None] = []
    monkeypatch.setattr(model, "use", used.append)
    worker = ModelWorker(model)
    (windows,) = read_texts(model.tokenizer, ["a cat"])
    inputs = [("a cat", windows)]

    def interrupt() -> None:
        if len(used) == 1:
            worker.run_batch(BatchKey("embed", "another"), inputs, lambda: None)

    worker.run_batch(BatchKey("embed", "one"), inputs, interrupt)
    assert used == ["one", "another", "one"]
    assert model._before_batch is None
