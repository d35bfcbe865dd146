"""Preset names, parameter counts, and invalid sizes."""

from typing import Any

import pytest
import torch

from cloze.errors import ConfigError
from cloze.model import PRESETS, Bert, BertConfig, preset


def test_presets_have_the_published_sizes() -> None:
    sizes = {name: preset(name) for name in PRESETS}
    assert {
        name: (size.layers, size.hidden_size, size.heads, size.feedforward_size) for name, size in sizes.items()
    } == {
        "tiny": (2, 128, 2, 512),
        "mini": (4, 256, 4, 1024),
        "small": (4, 512, 8, 2048),
        "medium": (8, 512, 8, 2048),
        "base": (12, 768, 12, 3072),
        "large": (24, 1024, 16, 4096),
    }
    assert {(size.vocab_size, size.positions, size.segments, size.head_size) for size in sizes.values()} == {
        (30522, 512, 2, 64)
    }


def test_base_is_the_default() -> None:
    assert preset("base") == BertConfig()


@pytest.mark.parametrize(("name", "count"), [("base", 109_482_240), ("large", 335_141_888)])
def test_parameter_counts(name: str, count: int) -> None:
    """Parameter counts equal those of ``transformers`` for bert-base-uncased and bert-large-uncased, with pooler."""
    with torch.device("meta"):
        assert Bert(preset(name), pooler=True).parameter_count() == count
        with_mlm = Bert(preset(name), ["mlm"], pooler=True)
    width = preset(name).hidden_size
    # The output matrix is tied to the embedding, so only a transform, its norm and one bias per piece are added.
    assert with_mlm.parameter_count() == count + width * width + 3 * width + 30522


def test_preset_with_changes() -> None:
    config = preset("tiny", 1000, positions=64, dropout=0.0)
    assert (config.vocab_size, config.positions, config.dropout, config.layers) == (1000, 64, 0.0, 2)


def test_unknown_preset() -> None:
    with pytest.raises(ConfigError, match=r"^unknown preset 'bsae'; did you mean 'base'\?$"):
        preset("bsae")
    with pytest.raises(
        ConfigError, match=r"^unknown preset 'xxl'; choose one of: tiny, mini, small, medium, base, large$"
    ):
        preset("xxl")


def test_unknown_head() -> None:
    with pytest.raises(ConfigError, match=r"^unknown head 'sequense'; did you mean 'sequence'\?$"):
        Bert(preset("tiny"), ["sequense"])  # type: ignore[list-item]


def test_no_pooler() -> None:
    with pytest.raises(ConfigError, match=r"^this model has no pooler; it was saved without one$"):
        Bert(BertConfig(10, 4, 1, 1, 4, 8)).pooled(torch.zeros(1, 2, 4), None)


WHOLE = "expected a whole number from 1 to 16777216"
SHARE = "expected a fraction of at least 0 and below 1"
SMALL_NUMBER = "expected a small positive number"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("vocab_size", 0, f"vocab_size is 0; {WHOLE}"),
        ("hidden_size", -768, f"hidden_size is -768; {WHOLE}"),
        ("layers", 2.0, f"layers is 2.0; {WHOLE}"),
        ("heads", True, f"heads is True; {WHOLE}"),
        ("feedforward_size", "3072", f"feedforward_size is '3072'; {WHOLE}"),
        ("positions", None, f"positions is None; {WHOLE}"),
        ("segments", 2**24 + 1, f"segments is 16777217; {WHOLE}"),
        (
            "heads",
            7,
            "hidden_size 768 is not divisible by 7 heads; choose a multiple of the number of heads",
        ),
        ("dropout", 1.0, f"dropout is 1.0; {SHARE}"),
        ("dropout", "0.1", f"dropout is '0.1'; {SHARE}"),
        ("attention_dropout", -0.1, f"attention_dropout is -0.1; {SHARE}"),
        ("attention_dropout", float("nan"), f"attention_dropout is nan; {SHARE}"),
        ("norm_epsilon", 0.0, f"norm_epsilon is 0.0; {SMALL_NUMBER}"),
        ("norm_epsilon", [], f"norm_epsilon is []; {SMALL_NUMBER}"),
        ("initial_deviation", 1, f"initial_deviation is 1; {SMALL_NUMBER}"),
        ("pad_id", 30522, "pad_id is 30522; expected an id from 0 to 30521"),
        ("pad_id", "0", "pad_id is '0'; expected an id from 0 to 30521"),
        ("activation", "gelo", "unknown activation 'gelo'; did you mean 'gelu'?"),
        ("embedding_size", 0, f"embedding_size is 0; {WHOLE}"),
        ("embedding_size", "128", f"embedding_size is '128'; {WHOLE}"),
        ("shared_layers", 1, "shared_layers is 1; expected true or false"),
        (
            "shared_layers",
            True,
            "shared_layers requires embedding_size; set it, for example to the hidden size (768)",
        ),
    ],
)
def test_invalid_input_is_rejected(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BertConfig(**{name: value})
    assert str(caught.value) == message


def test_no_end_of_shared_layers() -> None:
    shape = {"embedding_size": 128, "shared_layers": True}
    assert preset("base", layers=256, **shape).distinct_layers == 1
    with pytest.raises(ConfigError, match=r"^layers is 257; expected at most 256 shared layers$"):
        preset("base", layers=257, **shape)


def test_two_task_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most one task head"):
        Bert(preset("tiny"), ("mlm", "sequence", "token"))


def test_narrow_presets_start_wider() -> None:
    deviations = {name: round(preset(name).initial_deviation, 4) for name in PRESETS}
    assert deviations == {"tiny": 0.049, "mini": 0.0346, "small": 0.0245, "medium": 0.0245, "base": 0.02, "large": 0.02}
