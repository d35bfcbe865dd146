"""Unmodified third-party clients (OpenAI's, and requests of bert-as-service), with the real weights of MiniLM."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from torture.services import listening, running

from cloze.predict import Model, load
from cloze.serve.settings import ServiceSettings
from tests.serve.conftest import error_of

KEY = "sk-something-of-some-length"
TEXTS = ["A ship at sea.", "a boat", "The stock market fell today, and nobody knew why."]


@pytest.fixture(scope="module")
def address(minilm_folder: Path) -> Iterator[str]:
    """Serve on a real socket, because the client has its own transport."""
    with running(ServiceSettings({"minilm": str(minilm_folder)}, key=KEY)) as service, listening(service) as found:
        yield found


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path) -> Model:
    return load(minilm_folder)


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_openai_client_embeds(form: str | None, client: openai.OpenAI, minilm: Model) -> None:
    chosen = {} if form is None else {"encoding_format": form}  # the client requests base64 by default
    answer = client.embeddings.create(model="minilm", input=TEXTS, **chosen)  # type: ignore[arg-type]
    found = [one.embedding for one in answer.data]
    if form == "base64":
        found = [np.frombuffer(base64.b64decode(str(one)), "<f4").tolist() for one in found]
    np.testing.assert_allclose(found, minilm.embed(TEXTS), atol=1e-5)
    assert [one.index for one in answer.data] == [0, 1, 2]
    assert answer.usage.prompt_tokens == sum(len(minilm.tokenizer(text).ids) for text in TEXTS)
    assert answer.usage.model_extra == {"truncated": 0, "unknown": 0}  # additional fields, which the client accepts


def test_openai_client_may_send_ids(client: openai.OpenAI, minilm: Model) -> None:
    ids = [minilm.tokenizer(text, special=False).ids for text in TEXTS]
    whole = [minilm.tokenizer(text).ids for text in TEXTS]
    for given in (ids, whole):
        answer = client.embeddings.create(model="minilm", input=given)
        np.testing.assert_allclose([one.embedding for one in answer.data], minilm.embed(TEXTS), atol=1e-5)
    one = client.embeddings.create(model="minilm", input=ids[0])
    np.testing.assert_allclose(one.data[0].embedding, minilm.embed(TEXTS[:1])[0], atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([10**9], "no piece has the id"),
        ([-1], "no piece has the id"),
        ([103], "these ids are not those of a text"),
        ([1037] * 300, "300 ids for one text"),
    ],
)
def test_ids_that_are_no_text(given: list[int], message: str, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.embeddings.create(model="minilm", input=given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[1037]] * 2049, "2049 texts in one request, but at most 2048 are allowed; send fewer"),
        ([7] * 400_001, "400001 characters in one request, but at most 400000 are allowed"),
    ],
)
def test_ids_are_bounded_before_they_are_looked_up(given: list[Any], message: str, client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match=message) as refused:
        client.embeddings.create(model="minilm", input=given)
    assert refused.value.status_code == 413


def test_openai_client_lists_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["minilm"]
    assert client.models.retrieve("minilm").owned_by == "cloze"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("text-embedding-3-small")


def test_openai_client_understands_our_errors(client: openai.OpenAI, address: str) -> None:
    with pytest.raises(openai.NotFoundError, match="no model is called 'ada'; choose one of: minilm"):
        client.embeddings.create(model="ada", input="x")
    with pytest.raises(openai.BadRequestError, match="dimensions is 10"):
        client.embeddings.create(model="minilm", input="x", dimensions=10)
    assert len(client.embeddings.create(model="minilm", input="x", dimensions=384).data) == 1
    with (
        openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError, match="a key is needed"),
    ):
        other.models.list()


def test_bert_as_service(address: str, minilm: Model) -> None:
    headers = {"authorization": f"Bearer {KEY}"}

    def send_request(**body: object) -> httpx.Response:
        return httpx.post(f"{address}/encode", json=body, headers=headers)

    answer = send_request(id=123, texts=["hello world", "good day!"], is_tokenized=False).json()
    assert (answer["id"], answer["status"]) == (123, 200)
    np.testing.assert_allclose(answer["result"], minilm.embed(["hello world", "good day!"]), atol=1e-5)
    tokens = send_request(id="a", texts=[["hello", "world"], ["good", "day", "##s"]], is_tokenized=True).json()
    np.testing.assert_allclose(tokens["result"], minilm.embed(["hello world", "good days"]), atol=1e-5)
    assert error_of(send_request(texts=[], is_tokenized=False)) == (
        400,
        "no_text",
        "no text was given; send at least one",
    )
    message = "is_tokenized must be true for lists of tokens, and only for them"
    assert error_of(send_request(texts=["a"], is_tokenized=True)) == (400, "is_tokenized", message)
