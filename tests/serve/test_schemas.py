"""Bodies with a million errors cost no more than bodies with one."""

import json
import tracemalloc
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from cloze.serve import schemas
from cloze.serve.outcomes import InvalidRequestError
from cloze.serve.schemas import MOST_REPORTED, check
from cloze.serve.settings import Limits

SIZE = Limits().body
# Maximum number of errors for one list, regardless of its length: one for each type that its key accepts.
FEW = 10
MOST_MEMORY = 10 * SIZE  # the parsed body itself consists of objects as well


def filled(before: bytes, part: bytes, after: bytes) -> bytes:
    """Return the largest body that is accepted."""
    count = (SIZE - len(before) - len(after)) // (len(part) + 1)
    return before + b",".join([part] * count) + after


@pytest.mark.parametrize(
    ("form", "before", "part", "after"),
    [
        (schemas.EmbedForm, b'{"texts":[', b"0", b"]}"),
        (schemas.EmbedForm, b'{"texts":"a","pairs":[', b"0", b"]}"),
        (schemas.EmbedForm, b'{"texts":"a","layer":[', b"{}", b"]}"),
        (schemas.RerankForm, b'{"query":"a","texts":[', b"0", b"]}"),
        (schemas.TagForm, b'{"texts":[', b"0", b"]}"),
        (schemas.TagForm, b'{"texts":[', b"[0]", b"]}"),
        (schemas.TagForm, b'{"texts":[[', b"0", b"]]}"),
        (schemas.ChooseForm, b'{"prompt":"a","options":[', b"0", b"]}"),
        (schemas.CorrectForm, b'{"texts":"a","protected":[', b"0", b"]}"),
        (schemas.OpenAIForm, b'{"input":[', b"{}", b"]}"),
        (schemas.OpenAIForm, b'{"input":[[', b"{}", b"]]}"),
        (schemas.EncodeForm, b'{"texts":[', b"0", b"]}"),
        (schemas.EncodeForm, b'{"texts":[[', b"0", b"]]}"),
    ],
)
def test_a_list_is_refused_at_its_first_mistake(
    form: type[BaseModel], before: bytes, part: bytes, after: bytes
) -> None:
    with pytest.raises(ValidationError) as found:
        form.model_validate_json(filled(before, part, after))
    assert found.value.error_count() <= FEW


def peak_of(body: bytes, form: type[BaseModel]) -> tuple[str, int]:
    """Return the error message for a body, and the peak memory of producing it in bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError) as found:
            check(body, form)
        return str(found.value), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_unknown_keys_by_the_hundred_thousand() -> None:
    keys = b",".join(b'"%06x":0' % number for number in range(SIZE // 12))
    message, peak = peak_of(b"{" + keys + b"}", schemas.FillForm)
    assert message == "the body: 166667 mistakes, most of them unknown keys; known are model, texts, top, joint"
    assert peak < MOST_MEMORY  # a dictionary per error would take more than a hundred megabytes


def test_some_unknown_keys_are_named() -> None:
    body: dict[str, Any] = {"texts": "a", **{f"key{number}": 0 for number in range(MOST_REPORTED)}}
    assert peak_of(json.dumps(body).encode(), schemas.FillForm)[0].startswith("unknown key 'key0'")


def test_the_first_mistake_of_many_is_named() -> None:
    message, peak = peak_of(filled(b'{"texts":[', b"0", b"]}"), schemas.EmbedForm)
    assert message == "texts.str: Input should be a valid string"
    assert peak < MOST_MEMORY
