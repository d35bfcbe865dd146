"""``extend``: model folders with more words, positions or segments, loaded by cloze and by other libraries."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from cloze.checkpoint import ModelFolder, TaskLabels, load_folder
from cloze.checkpoint.convert import extend
from cloze.errors import CheckpointError, ConfigError, DataError
from cloze.model import BertConfig, HeadName
from cloze.model.surgery import WordStart
from cloze.predict import load
from cloze.text import Tokenizer
from tests.model.made import SMALL, model_folder, random_bert, saved, vocabulary
from tests.text.laddered import rungs
from tests.text.passages import CHINESE, ENGLISH, MIXED

WORDS = ["covid", "catdog", "cat-mat", "sarscov", "猫坐"]
LABELS = TaskLabels("classify", ("no", "perhaps", "yes"))
HEADS: dict[str, tuple[list[HeadName], TaskLabels | None]] = {
    "bare": ([], None),
    "pretrained": (["mlm", "nsp"], None),
    "sequence": (["sequence"], LABELS),
    "token": (["token"], LABELS),
    "span": (["span"], None),
    "choice": (["choice"], None),
}


@pytest.fixture
def words(tmp_path: Path) -> Path:
    (tmp_path / "words.txt").write_text("\n".join(WORDS), encoding="utf-8")
    return tmp_path / "words.txt"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def with_unused(contents: ModelFolder, count: int, rows: int | None = None) -> ModelFolder:
    """Return the folder with unused entries in place of the last pieces, and with surplus rows in the table."""
    pieces = [*contents.tokenizer.pieces[:-count], *(f"[unused{number}]" for number in range(count))]
    model = contents.model
    if rows is not None:
        config = replace(model.config, vocab_size=rows)
        model = random_bert(config, model.head_names, labels=model.labels)
    tokenizer = Tokenizer.from_vocabulary(pieces, lowercase=True, max_length=32)
    return replace(contents, model=model, tokenizer=tokenizer)


@pytest.mark.parametrize("name", HEADS)
def test_every_kind_of_model(name: str, words: Path, tmp_path: Path) -> None:
    heads, task = HEADS[name]
    source = saved(with_unused(model_folder(heads, labels=3, task=task), 2), tmp_path / "model")
    done = extend(source, tmp_path / "more", words=words)
    assert (done.words, done.grown, done.known, done.pieces, done.entities) == (5, 3, (), 63, 0)
    old, new = load_folder(source), load_folder(tmp_path / "more")
    assert new.model.config == replace(SMALL, vocab_size=63)
    assert (new.model.head_names, new.task) == (old.model.head_names, old.task)
    assert [new.tokenizer.id(word) for word in WORDS] == [58, 59, 60, 61, 62]
    table = old.model.state_dict()["encoder.embeddings.token.weight"]
    cat, mat = (old.tokenizer.id(piece) for piece in ("cat", "mat"))
    rows = new.model.state_dict()["encoder.embeddings.token.weight"]
    assert torch.equal(rows[58], table[old.tokenizer.unknown_id])
    assert torch.equal(rows[60], table[[cat, mat]].mean(0))  # "-" is not a piece in this vocabulary
    assert [rung for _, rung, _ in rungs(new.tokenizer, "Covid cat-mat covids 猫坐")] == [
        "added",
        "added",
        "unknown",
        "added",
    ]


def test_surplus_rows_are_used_before_the_table_grows(words: Path, tmp_path: Path) -> None:
    """Surplus rows are used before the table grows; published tables are often padded to a round size."""
    contents = with_unused(model_folder(["mlm"]), 1, rows=64)
    source = saved(contents, tmp_path / "model")
    done = extend(source, tmp_path / "more", words=words)
    assert (done.words, done.grown, done.pieces) == (5, 4, 64)
    new = load_folder(tmp_path / "more").model
    assert new.config.vocab_size == 64
    old = contents.model.state_dict()["heads.mlm.bias"]
    assert torch.equal(new.state_dict()["heads.mlm.bias"][:59], old[:59])
    assert new.state_dict()["heads.mlm.bias"][63] == old[[20, 21]].mean()  # ids of 猫 and 坐
    (tmp_path / "one.txt").write_text("mers\n", encoding="utf-8")
    assert extend(tmp_path / "more", tmp_path / "most", words=tmp_path / "one.txt").grown == 1
    assert load_folder(tmp_path / "most").model.config.vocab_size == 65


def test_again_and_in_place(words: Path, tmp_path: Path) -> None:
    source = saved(model_folder(["mlm"]), tmp_path / "model")
    extend(source, source, words=words)
    (tmp_path / "more.txt").write_text("covid\ncovid cat\n", encoding="utf-8")
    done = extend(source, source, words=tmp_path / "more.txt", characters=True)
    assert (done.words, done.known, done.pieces) == (1, ("covid",), 66)
    rows = load_folder(source).model.state_dict()["encoder.embeddings.token.weight"]
    cat = load_folder(source).tokenizer.id("cat")
    assert torch.equal(rows[65], rows[[60, cat]].mean(0))


def test_random_start(words: Path, tmp_path: Path) -> None:
    source = saved(model_folder(["mlm"]), tmp_path / "model")
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        extend(source, tmp_path / name, words=words, start="random", seed=seed)
    one, same, other = (
        load_folder(tmp_path / name).model.state_dict()["encoder.embeddings.token.weight"]
        for name in ("one", "same", "other")
    )
    assert torch.equal(one, same)
    assert torch.equal(one[:60], other[:60])
    assert not torch.equal(one[60:], other[60:])
    assert "initialised with random vectors" in (tmp_path / "one" / "README.md").read_text(encoding="utf-8")


def test_vocabulary_alone(words: Path, tmp_path: Path) -> None:
    model_folder().tokenizer.save(tmp_path / "vocabulary")
    (tmp_path / "map.tsv").write_text("felis catus\tcat\n", encoding="utf-8")
    done = extend(tmp_path / "vocabulary", tmp_path / "more", words=words, entities=tmp_path / "map.tsv")
    assert {path.name for path in (tmp_path / "more").iterdir()} == {
        "vocab.txt",
        "tokenizer.json",
        "tokenizer_config.json",
        "ladder.json",
    }
    assert (done.words, done.grown, done.entities) == (5, 5, 1)
    tokenizer = Tokenizer.from_folder(tmp_path / "more")
    assert rungs(tokenizer, "covid, felis catus") == [
        ("covid", "added", "covid"),
        (",", "word", ","),
        ("felis catus", "entity", "cat"),
    ]
    (tmp_path / "empty").mkdir()
    for place in ("more", "empty"):
        assert extend(tmp_path / "vocabulary", tmp_path / place, characters=True).words == 0
        assert not Tokenizer.from_folder(tmp_path / place).settings.ladder.words


@pytest.mark.parametrize("card", [None, "# My model\n"])
def test_card_mentions_added_words(card: str | None, words: Path, tmp_path: Path) -> None:
    source = saved(replace(model_folder(["mlm"]), card=card), tmp_path / "model")
    if card is None:
        (source / "README.md").unlink()
    extend(source, tmp_path / "more", words=words, look_alikes=True)
    text = (tmp_path / "more" / "README.md").read_text(encoding="utf-8")
    assert text.startswith(card or "# BERT, 3 layers")
    assert (
        "Extended by cloze: 5 words added, initialised with the mean of their pieces; 65 pieces in total; 0 entities; "
        "further rungs: look-alikes. "
    ) in text


def thesis(folder: Path) -> Path:
    folder.mkdir()
    (folder / "chapter.txt").write_text("years", encoding="utf-8")
    return folder


def test_places_of_others_are_refused(words: Path, tmp_path: Path) -> None:
    source = saved(model_folder(), tmp_path / "model")
    model_folder().tokenizer.save(tmp_path / "vocabulary")
    place = thesis(tmp_path / "thesis")
    with pytest.raises(CheckpointError, match=r"thesis: exists and is not a model folder; choose another location$"):
        extend(source, place, words=words)
    mixed = shutil.copytree(tmp_path / "vocabulary", tmp_path / "mixed")
    (mixed / "chapter.txt").write_text("years", encoding="utf-8")
    for other in (place, mixed, source, place / "chapter.txt"):
        with pytest.raises(CheckpointError, match=r"exists and is not a vocabulary folder; choose another --out$"):
            extend(tmp_path / "vocabulary", other, words=words)
    assert (mixed / "chapter.txt").read_text(encoding="utf-8") == "years"


def test_bad_words_leave_no_files(tmp_path: Path) -> None:
    source = saved(model_folder(), tmp_path / "model")
    (tmp_path / "bad.txt").write_text("covid\n[MASK]\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"bad.txt:2: '\[MASK\]' is a special or reserved entry"):
        extend(source, tmp_path / "more", words=tmp_path / "bad.txt")
    with pytest.raises(
        ConfigError,
        match=r"^nothing to add; give --words, --entities, --characters, --look-alikes, --similar, --positions "
        r"or --segments$",
    ):
        extend(source, tmp_path / "more")
    with pytest.raises(CheckpointError, match="none: no such folder"):
        extend(tmp_path / "none", tmp_path / "more", characters=True)
    assert not (tmp_path / "more").exists()


@torch.no_grad()
def test_transformers_reads_it(words: Path, tmp_path: Path) -> None:
    source = saved(with_unused(model_folder(["mlm", "nsp"]), 2), tmp_path / "model")
    extend(source, tmp_path / "more", words=words, characters=True)
    ours = load_folder(tmp_path / "more")
    reader: Any = transformers.BertForPreTraining
    theirs, report = reader.from_pretrained(tmp_path / "more", output_loading_info=True)
    assert not any(report.values()), report
    assert theirs.config.vocab_size == 63
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "more")
    for text in ("the cats sat on a mat.", "Covid, the dogs ran. sarscov", "catdog 猫"):
        assert tokenizer(text)["input_ids"] == ours.tokenizer(text).ids
    assert tokenizer("covid sarscov catdog", add_special_tokens=False)["input_ids"] == [58, 61, 59]
    ids = torch.tensor([ours.tokenizer("covid cat-mat sat").ids])
    expected = ours.model.heads["mlm"](ours.model(ids, torch.zeros_like(ids)).last)
    torch.testing.assert_close(theirs.eval()(ids).prediction_logits, expected, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("count", [3, 1500])
def test_published_model_is_bit_identical(count: int, minilm_folder: Path, tmp_path: Path) -> None:
    """Without new words, a text has bit-identical results, whether words use unused entries or new rows."""
    made = [f"zq{number}x" for number in range(count)]
    (tmp_path / "words.txt").write_text("\n".join(made), encoding="utf-8")
    done = extend(minilm_folder, tmp_path / "more", words=tmp_path / "words.txt", characters=True, look_alikes=True)
    assert (done.words, done.grown) == (count, max(0, count - 994))
    old, new = load_folder(minilm_folder), load_folder(tmp_path / "more")
    texts = ["covid", *ENGLISH.splitlines()[:2], ENGLISH[:80]]
    for text in (ENGLISH, CHINESE, MIXED):
        before = old.tokenizer(text)
        assert new.tokenizer(text).ids == before.ids or before.unknown
    for ids in [[old.tokenizer(text).ids] for text in texts] + [[old.tokenizer(ENGLISH).ids[:40]] * 3]:
        batch = torch.tensor(ids)
        states = [model(batch, torch.zeros_like(batch)).last for model in (old.model, new.model)]
        assert torch.equal(states[0], states[1])
    ours = load(tmp_path / "more").embed(texts)
    assert (ours == load(minilm_folder).embed(texts)).all()
    first = new.tokenizer.id(made[0])
    assert new.tokenizer(f"{made[0]} {made[0]}s", special=False).ids[0] == first
    assert new.tokenizer(f"{made[0]}s").ids == old.tokenizer(f"{made[0]}s").ids


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 5])
def test_logits_of_old_entries_are_the_same_bits(batch: int, words: Path, tmp_path: Path) -> None:
    config = replace(SMALL, vocab_size=1000, hidden_size=64, feedforward_size=96)
    contents = ModelFolder(
        random_bert(config, ["mlm", "nsp"]), Tokenizer.from_vocabulary(vocabulary(1000), lowercase=True, max_length=32)
    )
    source = saved(contents, tmp_path / "model")
    extend(source, tmp_path / "more", words=words)
    old, new = load(source), load(tmp_path / "more")
    texts = ["the cat sat on a mat, word7", "dogs ran", "猫坐 on", "", "word9 word10"][:batch]
    ids = [old.tokenizer(text).ids for text in texts]
    longest = max(map(len, ids))
    padded = torch.tensor([[*row, *[0] * (longest - len(row))] for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    both = [load_folder(folder).model for folder in (source, tmp_path / "more")]
    states = [model(padded, torch.zeros_like(padded), mask).last for model in both]
    assert torch.equal(states[0], states[1])
    logits = [model.heads["mlm"](state) for model, state in zip(both, states, strict=True)]
    assert torch.equal(logits[1][..., :1000], logits[0])
    assert logits[1].shape[-1] == 1005
    assert new.fill("the [MASK] sat", 3)[0]


# More positions and segments


@torch.no_grad()
@pytest.mark.parametrize(
    "config", [SMALL, replace(SMALL, embedding_size=10, shared_layers=True)], ids=["bert", "albert"]
)
def test_extended_positions_and_words(config: BertConfig, words: Path, tmp_path: Path) -> None:
    """With words and positions added together, old inputs are bit-identical, and longer ones work."""
    source = saved(model_folder(["mlm", "nsp"], config=config), tmp_path / "model")
    done = extend(source, tmp_path / "more", words=words, positions=100, segments=4)
    assert (done.positions, done.segments, done.words, done.pieces) == (100, 4, 5, 65)
    old, new = load_folder(source), load_folder(tmp_path / "more")
    assert new.model.config == replace(config, vocab_size=65, positions=100, segments=4)
    assert (new.tokenizer.max_length, new.tokenizer.segments) == (100, 4)
    text, pair = "the cat sat on a mat, " * 4, "dogs ran"
    ids, segments = (torch.tensor([values]) for values in _encoded(old.tokenizer, text, pair))
    assert torch.equal(old.model(ids, segments).last, new.model(ids, segments).last)
    long = new.tokenizer.encode_segments([text, pair, text, "covid"])
    assert len(long.ids) == 65
    batch = torch.tensor([long.ids]), torch.tensor([long.segments])
    assert new.model(*batch).last.isfinite().all()
    # The extended folder can be extended again.
    assert extend(tmp_path / "more", tmp_path / "most", characters=True).segments == 4
    assert load_folder(tmp_path / "most").tokenizer.settings.segments == 4


def _encoded(tokenizer: Tokenizer, text: str, pair: str) -> tuple[list[int], list[int]]:
    encoding = tokenizer(text, pair)
    return encoding.ids, encoding.segments


@torch.no_grad()
def test_transformers_loads_extended_positions(tmp_path: Path) -> None:
    source = saved(model_folder(["mlm", "nsp"]), tmp_path / "model")
    extend(source, tmp_path / "more", positions=1024, segments=4)
    ours = load_folder(tmp_path / "more")
    reader: Any = transformers.BertForPreTraining
    theirs, report = reader.from_pretrained(tmp_path / "more", output_loading_info=True)
    assert not any(report.values()), report
    assert (theirs.config.max_position_embeddings, theirs.config.type_vocab_size) == (1024, 4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "more")
    assert tokenizer.model_max_length == 1024
    assert tokenizer("the cat", "a mat")["input_ids"] == ours.tokenizer("the cat", "a mat").ids
    encoding = ours.tokenizer.encode_segments(["the cat " * 20, "a mat", "dogs", "ran"])
    ids, segments = torch.tensor([encoding.ids]), torch.tensor([encoding.segments])
    expected = ours.model.heads["mlm"](ours.model(ids, segments).last)
    output = theirs.eval()(input_ids=ids, token_type_ids=segments)
    torch.testing.assert_close(output.prediction_logits, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("start", "begun"), [("pieces", "copies of existing ones"), ("random", "random vectors")])
def test_card_mentions_the_new_length(start: WordStart, begun: str, tmp_path: Path) -> None:
    source = saved(model_folder(["mlm"]), tmp_path / "model")
    extend(source, tmp_path / "more", segments=3, start=start)
    text = (tmp_path / "more" / "README.md").read_text(encoding="utf-8")
    assert f"Extended by cloze: 32 to 32 positions, 2 to 3 segments. The new ones are initialised as {begun}" in text
    assert "## Words" not in text
    rows = load_folder(tmp_path / "more").model.state_dict()["encoder.embeddings.segment.weight"]
    assert torch.equal(rows[2], rows[1]) == (start == "pieces")


def test_reach_that_cannot_be(tmp_path: Path) -> None:
    source = saved(model_folder(["mlm"]), tmp_path / "model")
    with pytest.raises(
        ConfigError, match=r"^positions is 16, but the model already has 32; they can only be added, not"
    ):
        extend(source, tmp_path / "more", positions=16)
    with pytest.raises(ConfigError, match=r"^segments is 1, but the model already has 2; they can only be added, not"):
        extend(source, tmp_path / "more", segments=1)
    with pytest.raises(ConfigError, match=r"^positions is 33554432; expected a whole number from 1 to"):
        extend(source, tmp_path / "more", positions=2**25)
    model_folder().tokenizer.save(tmp_path / "vocabulary")
    with pytest.raises(
        ConfigError, match=r"vocabulary: a vocabulary has no positions or segments; extend a model instead$"
    ):
        extend(tmp_path / "vocabulary", tmp_path / "more", positions=64)
    assert not (tmp_path / "more").exists()


def test_segments_that_the_model_lacks_are_refused(tmp_path: Path) -> None:
    contents = model_folder(["mlm"])
    saved(replace(contents, tokenizer=contents.tokenizer.with_segments(3)), tmp_path / "model")
    with pytest.raises(
        CheckpointError,
        match=r"model: cloze_segments in tokenizer_config.json is 3, but the model has 2 segments; use the files that",
    ):
        load_folder(tmp_path / "model")
    # An explicit single segment differs from a missing setting: such models exist and accept only single texts.
    one = model_folder(config=replace(SMALL, segments=1))
    assert load_folder(saved(one, tmp_path / "one")).tokenizer.segments == 2
