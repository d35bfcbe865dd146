"""What each route takes, as it is checked and as ``/docs`` tells it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str | None, Field(default=None, max_length=200, description="A model or an adapter; see /v1/models.")]
Texts = Annotated[str | list[str], Field(description="One text, or several.")]
Top = Annotated[int, Field(ge=1, le=100)]


class Form(BaseModel):
    """Exactly these keys, exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: Name


class EmbedForm(Form):
    """Texts, or pairs of texts, to be turned into vectors."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["a ship at sea", "a boat"]}]})

    texts: Texts
    pairs: Texts | None = Field(default=None, description="A second text for each.")
    pooling: str | None = Field(default=None, max_length=20, description="cls, mean, max or mean_max.")
    layer: Annotated[int, Field(ge=-1000, le=1000)] = -1


class RerankForm(Form):
    """A query, and texts to be ordered by how near they are to it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"query": "a ship at sea", "texts": ["a boat", "the stock market"]}]}
    )

    query: str
    texts: list[str]
    top: Annotated[int | None, Field(ge=1)] = None


class FillForm(Form):
    """Texts with [MASK] where words are to be filled in."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": "He shook his [MASK]."}]})

    texts: Texts
    top: Top = 5


class ClassifyForm(Form):
    """Texts, or pairs of texts, to be labelled or rated."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["It was the best of times."]}]})

    texts: Texts
    pairs: Texts | None = Field(default=None, description="A second text for each.")


class TagForm(Form):
    """Texts, or sentences as lists of words, to be tagged."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["Mr. Darcy left London."]}]})

    texts: str | list[str] | list[list[str]]


class AnswerForm(Form):
    """A question, and a text in which the answer may stand."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"question": "Who left?", "context": "Mr. Darcy left London."}]}
    )

    question: str
    context: str
    top: Top = 1


class ChooseForm(Form):
    """A prompt, and options of which one fits."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "He opened the door", "options": ["and went in.", "of green."]}]}
    )

    prompt: str
    options: Annotated[list[str], Field(min_length=2)]


class CorrectForm(Form):
    """Texts to be corrected."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["He opened teh door."]}]})

    texts: Texts


class TokenizeForm(Form):
    """Texts, or pairs of texts, to be shown as the model reads them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["unbelievable"]}]})

    texts: Texts
    pairs: Texts | None = Field(default=None, description="A second text for each.")


class OpenAIForm(BaseModel):
    """OpenAI's request for embeddings. Keys that mean nothing here are let pass, as its clients expect."""

    model_config = ConfigDict(
        extra="ignore", strict=True, json_schema_extra={"examples": [{"model": None, "input": "a ship at sea"}]}
    )

    input: str | list[str] | list[int] | list[list[int]] = Field(description="Texts, or texts as ids of tokens.")
    model: Name
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int | None, Field(ge=1)] = None


class EncodeForm(BaseModel):
    """bert-as-service's request."""

    model_config = ConfigDict(
        extra="ignore", strict=True, json_schema_extra={"examples": [{"id": 1, "texts": ["hello world"]}]}
    )

    id: int | Annotated[str, Field(max_length=1000)] | None = Field(default=None, description="Given back as it is.")
    texts: list[str] | list[list[str]]
    is_tokenized: bool = False
    model: Name
