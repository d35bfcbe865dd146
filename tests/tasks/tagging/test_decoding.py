import random
import re
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertForTokenClassification

from cloze.checkpoint import TaskLabels, load_folder
from cloze.errors import CheckpointError, RequestError
from cloze.files import read_json, write_json
from cloze.predict import Entity, Model, load, write_report
from cloze.tasks.examples import LabelSet
from cloze.tasks.rows import Source
from cloze.tasks.tagging.decoding import decode_tags, evaluate_tags, tag_texts, word_logits
from cloze.tasks.tagging.kind import TaggedSentences, read_own_tags
from cloze.tasks.tagging.sequences import read_words
from tests.model.made import model_folder, saved

NAMES = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
WORDS = ["the", "cat", "sats", "on", "a", "mat", "dog", "ran", "sating", ".", "猫", "unheard", "\u200d"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = model_folder(["token"], labels=5, task=TaskLabels("tag", NAMES))
    return saved(made, tmp_path_factory.mktemp("tagger") / "model")


@pytest.fixture(scope="module")
def tagger(folder: Path) -> Model:
    return load(folder)


def make_sentences(count: int, longest: int = 9, seed: int = 0) -> list[list[str]]:
    draw = random.Random(seed)
    return [draw.choices(WORDS, k=draw.randint(1, longest)) for _ in range(count)]


def best_tags(logits: np.ndarray) -> list[str]:
    return [NAMES[index] for index in decode_tags(NAMES, [logits])[0]]


def test_transformers_load_the_folder_and_agree(folder: Path, tagger: Model) -> None:
    theirs = BertForTokenClassification.from_pretrained(folder).eval()  # type: ignore[no-untyped-call]
    assert theirs.config.id2label == dict(enumerate(NAMES))
    for words in make_sentences(8):
        (ids,) = read_words(tagger.tokenizer, [words])
        flat = [tagger.tokenizer.cls_id, *(piece for word in ids for piece in word), tagger.tokenizer.sep_id]
        firsts = np.cumsum([1, *map(len, ids[:-1])])
        with torch.inference_mode():
            expected = theirs(input_ids=torch.tensor([flat])).logits[0, firsts].numpy()
        assert np.abs(word_logits(tagger, [ids])[0] - expected).max() < 1e-5


def test_neighbours_in_a_batch_change_nothing(tagger: Model) -> None:
    sentences = read_words(tagger.tokenizer, make_sentences(20, longest=40))
    together = word_logits(tagger, sentences)
    assert [len(row) for row in together] == [len(words) for words in sentences]
    for words, row in zip(sentences, together, strict=True):
        assert np.abs(word_logits(tagger, [words])[0] - row).max() < 1e-5


def test_words_keep_their_tags_and_places(tagger: Model) -> None:
    sentences = make_sentences(6)
    for words, one in zip(sentences, tagger.tag(sentences), strict=True):
        assert [word.text for word in one.words] == words
        assert [one.text[word.start : word.end] for word in one.words] == words
        logits = word_logits(tagger, read_words(tagger.tokenizer, [words]))[0]
        assert [word.tag for word in one.words] == best_tags(logits)
        shares = torch.tensor(logits).softmax(-1)
        expected = [float(row[NAMES.index(word.tag)]) for row, word in zip(shares, one.words, strict=True)]
        assert [word.probability for word in one.words] == pytest.approx(expected, abs=1e-6)


def test_running_text_is_split_as_the_tokenizer_does(tagger: Model) -> None:
    text = "The  cat, sats猫坐 Unheard."
    (one,) = tagger.tag([text])
    assert [word.text for word in one.words] == ["The", "cat", ",", "sats", "猫", "坐", "Unheard", "."]
    assert [text[word.start : word.end] for word in one.words] == [word.text for word in one.words]
    assert [word.tag for word in one.words] == [
        word.tag for word in tagger.tag([[word.text for word in one.words]])[0].words
    ]


@pytest.mark.parametrize("seed", range(8))
def test_long_texts_lose_no_word(tagger: Model, seed: int) -> None:
    draw = random.Random(seed)
    words = [word for word in draw.choices(WORDS, k=draw.randint(40, 300)) if word != "\u200d"]
    (one,) = tagger.tag([" ".join(words)])
    assert [word.text for word in one.words] == words
    assert all(earlier.end <= later.start for earlier, later in pairwise(one.words))
    as_words = tagger.tag([words])[0].words
    assert [(word.tag, word.probability) for word in as_words] == [(word.tag, word.probability) for word in one.words]


def test_texts_without_words(tagger: Model) -> None:
    assert tagger.tag([]) == []
    assert [one.words for one in tagger.tag(["", "  \x01 "])] == [(), ()]
    assert [(one.text, one.entities) for one in tagger.tag([[]])] == [("", ())]


def entities_of(monkeypatch: pytest.MonkeyPatch, tagger: Model, text: str, tags: str) -> tuple[Entity, ...]:
    """Return the entities decoded from the given tags, each predicted with logit 1."""
    logits = np.eye(5, dtype=np.float32)[[NAMES.index(tag) for tag in tags.split()]]
    monkeypatch.setattr("cloze.tasks.tagging.decoding.word_logits", lambda *_: [logits])
    return tag_texts(tagger, [text])[0].entities


def test_entities_have_their_place_in_the_text(monkeypatch: pytest.MonkeyPatch, tagger: Model) -> None:
    sure = np.e / (np.e + 4)
    found = entities_of(monkeypatch, tagger, "The  cat sat on a mat.", "O B-PER I-PER O B-LOC B-LOC O")
    assert [(one.text, one.label, one.start, one.end) for one in found] == [
        ("cat sat", "PER", 5, 12),
        ("a", "LOC", 16, 17),
        ("mat", "LOC", 18, 21),
    ]
    assert [one.probability for one in found] == pytest.approx([sure] * 3)


def test_requests_that_cannot_be_answered(tagger: Model) -> None:
    for wrong in ("a text", ["a", ["b"]], [["b"], "a"]):
        with pytest.raises(RequestError, match="expected a list of texts, or a list of sentences"):
            tagger.tag(wrong)
    with pytest.raises(RequestError, match="word 2 of sentence 2 is empty; leave it out"):
        tagger.tag([["a"], ["b", ""]])
    with pytest.raises(RequestError) as caught:
        Model(model_folder(["mlm", "nsp"])).tag(["a"])
    assert str(caught.value) == (
        "this model was not trained to tag (its heads: mlm, nsp); load a folder that 'cloze finetune tag' has written"
    )
    classifier = Model(model_folder(["sequence"], task=TaskLabels("classify", ("a", "b"))))
    with pytest.raises(RequestError, match=r"this model was not trained to tag \(its head was trained for: classify\)"):
        classifier.tag(["a"])


def test_scores_that_are_no_numbers_are_no_answer() -> None:
    made = model_folder(["token"], labels=5, task=TaskLabels("tag", NAMES))
    with torch.no_grad():
        next(made.model.heads["token"].parameters())[0, 0] = torch.nan
    with pytest.raises(RequestError) as caught:
        Model(made).tag(["the cat"])
    assert str(caught.value) == "the scores of this model are not finite numbers; check its training"


def test_a_text_that_is_too_long_to_be_read_is_told(tagger: Model, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "cloze"):
        tagger.tag([" \u0301" * 600_000 + " cat"])
    assert caplog.messages == ["1 of 1 texts are too long and were cut; split them"]


# -- legal sequences ---------------------------------------------------------------------------------------------------

SCHEMES = {
    "BIO": NAMES,
    "BIOES": ("O", *(f"{prefix}-{kind}" for kind in ("LOC", "PER") for prefix in "BIES")),
    "BIOS": ("O", "B-X", "I-X", "S-X"),
    "BIOE": ("O", "B-X", "I-X", "E-X"),
    "BMES": ("B-X", "M-X", "E-X", "S-X"),
    "BILOU": ("O", "B-X", "I-X", "L-X", "U-X"),
}
# Valid tag sequences of one sentence and one entity type, as regular expressions over the prefix letters.
GRAMMAR = {
    "BIO": "(O|BI*)*",
    "BIOES": "(O|S|BI*E)*",
    "BIOS": "(O|S|BI+)*",
    "BIOE": "(O|B(I*E)?)*",
    "BMES": "(S|BM*E)*",
    "BILOU": "(O|U|BI*L)*",
}


def is_legal(scheme: str, tags: Sequence[str]) -> bool:
    """Return whether a sequence matches the grammar of its scheme; an entity has one type throughout."""
    if not re.fullmatch(GRAMMAR[scheme], "".join(tag[0] for tag in tags)):
        return False
    return all(one[1:] == two[1:] for one, two in pairwise(tags) if two[0] in "IMEL")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_best_legal_sequence_is_found(scheme: str) -> None:
    names, draw = SCHEMES[scheme], np.random.default_rng(3)
    changed = 0
    for length in (1, 2, 3, 4) * 6:
        logits = draw.normal(size=(length, len(names))).astype(np.float32)
        (tags,) = decode_tags(names, [logits])
        legal = [
            path for path in product(range(len(names)), repeat=length) if is_legal(scheme, [names[tag] for tag in path])
        ]
        best = max(legal, key=lambda path: sum(float(logits[word, tag]) for word, tag in enumerate(path)))
        assert tuple(tags.tolist()) == best
        greedy = tuple(logits.argmax(-1).tolist())
        changed += best != greedy
        if greedy in legal:
            assert best == greedy
    assert changed > 3


@pytest.mark.parametrize("scheme", SCHEMES)
def test_long_sentences_are_legal_too(scheme: str) -> None:
    logits = [
        np.random.default_rng(seed).normal(size=(seed, len(SCHEMES[scheme]))).astype(np.float32)
        for seed in range(1, 60)
    ]
    for row in decode_tags(SCHEMES[scheme], logits):
        assert is_legal(scheme, [SCHEMES[scheme][tag] for tag in row])


@pytest.mark.parametrize("names", [("NN", "VB", "DT"), ("B-PER", "I-PER", "I-LOC", "O"), ("I-X", "O"), ("B-X", "O")])
def test_tags_without_such_a_scheme_stay_as_they_are(names: tuple[str, ...]) -> None:
    logits = np.random.default_rng(0).normal(size=(200, len(names))).astype(np.float32)
    assert (decode_tags(names, [logits])[0] == logits.argmax(-1)).all()


def test_what_a_tagger_says_is_legal(tagger: Model, tmp_path: Path) -> None:
    sentences = make_sentences(30, longest=20)
    logits = word_logits(tagger, read_words(tagger.tokenizer, sentences))
    assert not all(is_legal("BIO", [NAMES[tag] for tag in row.argmax(-1)]) for row in logits)
    for one in tagger.tag(sentences):
        assert is_legal("BIO", [word.tag for word in one.words])
    gold = make_examples(tmp_path / "gold.txt", sentences, [["O"] * len(words) for words in sentences])
    assert all(is_legal("BIO", tags.split()) for tags in evaluate_tags(tagger, gold, ()).predictions)


# -- scores ------------------------------------------------------------------------------------------------------------


def make_examples(path: Path, sentences: list[list[str]], tags: list[list[str]]) -> TaggedSentences:
    blocks = (
        "".join(f"{word} NN {tag}\n" for word, tag in zip(*both, strict=True))
        for both in zip(sentences, tags, strict=True)
    )
    path.write_text("-DOCSTART- O O\n\n" + "\n".join(blocks), encoding="utf-8")
    examples = read_own_tags(Source("tag", path), "train", LabelSet(NAMES)).examples
    assert isinstance(examples, TaggedSentences)
    return examples


def test_scores_of_what_it_says(tagger: Model, tmp_path: Path) -> None:
    sentences = make_sentences(12)
    predicted = [best_tags(row) for row in word_logits(tagger, read_words(tagger.tokenizer, sentences))]
    gold = make_examples(tmp_path / "gold.txt", sentences, predicted)
    evaluation = evaluate_tags(tagger, gold, ())
    # An I tag without a preceding tag is treated as a beginning, so the entities are the same.
    assert {name: value for name, value in evaluation.metrics.items() if name != "accuracy"} == {
        "f1": 1.0,
        "precision": 1.0,
        "recall": 1.0,
    }
    assert evaluation.predictions == [" ".join(tags) for tags in predicted]
    assert evaluation.confusion is not None
    assert sum(map(sum, evaluation.confusion.counts)) == sum(map(len, sentences))
    wrong = [["B-LOC" if tag == "O" else "O" for tag in tags] for tags in predicted]
    scores = evaluate_tags(tagger, make_examples(tmp_path / "wrong.txt", sentences, wrong), ()).metrics
    assert (scores["f1"], scores["accuracy"]) == (0.0, 0.0)


def test_predictions_are_written_as_columns(tagger: Model, tmp_path: Path) -> None:
    sentences = make_sentences(3)
    gold = make_examples(tmp_path / "gold.txt", sentences, [["O"] * len(words) for words in sentences])
    evaluation = evaluate_tags(tagger, gold, ())
    write_report(evaluation, tmp_path / "report")
    blocks = (tmp_path / "report" / "predictions.txt").read_text(encoding="utf-8").strip("\n").split("\n\n")
    rows = [[line.split(" ") for line in block.splitlines()] for block in blocks]
    assert [[row[0] for row in block] for block in rows] == sentences
    assert [" ".join(row[3] for row in block) for block in rows] == evaluation.predictions
    assert {(row[1], row[2]) for block in rows for row in block} == {("NN", "O")}
    assert read_json(tmp_path / "report" / "confusion.json")["labels"] == list(NAMES)


def test_context_goes_with_the_folder_and_changes_what_is_read(tmp_path: Path) -> None:
    made = model_folder(["token"], labels=5, task=TaskLabels("tag", NAMES, context=True))
    folder = saved(made, tmp_path / "model")
    tagger = load(folder)
    assert tagger.task == TaskLabels("tag", NAMES, context=True)
    sentences = make_sentences(9, longest=5)
    gold = make_examples(tmp_path / "gold.txt", sentences, [["O"] * len(words) for words in sentences])
    ids = read_words(tagger.tokenizer, sentences)
    logits = word_logits(tagger, ids, [list(range(9))])
    with_context = [best_tags(row) for row in logits]
    assert evaluate_tags(tagger, gold, ()).predictions == [" ".join(tags) for tags in with_context]
    assert any(np.abs(one - two).max() > 1e-3 for one, two in zip(logits, word_logits(tagger, ids), strict=True))
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {**config, "cloze_task": {"context": "often"}})
    with pytest.raises(CheckpointError, match=r"cloze_task.context is 'often'; expected one of false, true"):
        load_folder(folder)


def test_a_tagger_of_characters_reads_raw_text_by_characters(tagger: Model, tmp_path: Path) -> None:
    made = model_folder(["token"], labels=5, task=TaskLabels("tag", NAMES, characters=True))
    by_characters = load(saved(made, tmp_path / "model"))
    assert by_characters.task == TaskLabels("tag", NAMES, characters=True)
    text = "猫坐 iPhone12。"
    (one,) = by_characters.tag([text])
    assert [word.text for word in one.words] == [character for character in text if character != " "]
    assert [text[word.start : word.end] for word in one.words] == [word.text for word in one.words]
    assert "iPhone12" in [word.text for word in tagger.tag([text])[0].words]


def test_rows_of_characters_are_recognized(tmp_path: Path) -> None:
    characters = make_examples(tmp_path / "zh.txt", [list("猫坐a1")] * 20, [["O"] * 4] * 20)
    words = make_examples(tmp_path / "words.txt", [["猫", "坐下", "cat"]], [["O"] * 3])
    letters = make_examples(tmp_path / "en.txt", [["a", "b"]], [["O"] * 2])
    assert [one.by_characters for one in (characters, words, letters)] == [True, False, False]
