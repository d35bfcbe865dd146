"""Out-of-vocabulary words on the command line: tokens, coverage, extend, and their effects."""

import json
from pathlib import Path

import pytest

from cloze.checkpoint import load_folder
from cloze.text import Tokenizer
from tests.cli.conftest import Cloze, Way

TEXT = "Quixotic Sherlock Holmes ☃ saw ﬁve\n" * 8


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "text.txt"


@pytest.fixture
def entities(tmp_path: Path) -> Path:
    (tmp_path / "map.tsv").write_text("Sherlock Holmes\tthe man\tperson\n", encoding="utf-8")
    return tmp_path / "map.tsv"


def test_from_coverage_to_a_model_with_more_words(run: Cloze, way: Way, text: Path, tmp_path: Path) -> None:
    words, more = tmp_path / "words.tsv", tmp_path / "more"
    before = json.loads(run("coverage", text, "--model", way.pretrained, "--output", words, "--json").out)
    assert words.read_text(encoding="utf-8").splitlines()[0] == "word\tcount\tpieces\tsaves"
    assert (before["words"], before["rungs"]["unknown"]) == (48, 16)
    assert before["unknown_rate"] == 16 / 48
    assert before["given_up"] == [{"word": "☃", "count": 8}, {"word": "ﬁve", "count": 8}]
    listed = [row["word"] for row in before["worth_adding"]]
    assert set(listed) >= {"quixotic", "sherlock", "holmes", "ﬁve"}

    told = json.loads(run("extend", "--model", way.pretrained, "--words", words, "--out", more, "--json").out)
    assert told == {
        "folder": str(more),
        "words": len(listed),
        "grown": len(listed),
        "known": [],
        "entities": 0,
        "pieces": 500 + len(listed),
        "positions": 512,
        "segments": 2,
    }
    after = json.loads(run("coverage", text, "--model", more, "--json").out)
    assert after["pieces_per_word"] == before["after_adding"]["pieces_per_word"]
    assert before["after_adding"]["words"] == after["rungs"]["added"] // 8 == len(listed)
    assert after["worth_adding"] == []
    assert load_folder(more).model.config.vocab_size == 500 + len(listed)
    assert run("fill", "quixotic [MASK]", "--model", more).code == 0


def test_rows_are_read_by_their_column(run: Cloze, way: Way, text: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"body": line}) + "\n" for line in TEXT.splitlines()), encoding="utf-8")
    plain = run("coverage", text, "--model", way.vocabulary, "--json").out
    assert run("coverage", rows, "--text", "body", "--model", way.vocabulary, "--json").out == plain
    assert "no column 'text'; it has: body; choose one with --text" in run("coverage", rows).complaint


def test_extend_in_reach(run: Cloze, way: Way, tmp_path: Path) -> None:
    more = tmp_path / "more"
    done = run("extend", "--model", way.pretrained, "--positions", 600, "--segments", 4, "--out", more)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [f"{more}: 500 pieces, 0 entities", "600 positions, 4 segments"]
    contents = load_folder(more)
    assert (contents.tokenizer.max_length, contents.model.config.positions) == (600, 600)
    assert contents.tokenizer.encode_segments(["one", "two", "three", "four"]).segments[-1] == 3
    assert run("fill", "the [MASK]", "--model", more).code == 0


def test_coverage_as_a_table(run: Cloze, way: Way, text: Path) -> None:
    lines = run("coverage", text, "--model", way.vocabulary, "--top", 2).out.splitlines()
    assert lines[0] == "rung\t\twords\tshare"
    assert [line.split("\t")[:2] for line in lines[1:8]] == [
        ["1", "pieces"],
        ["1", "word"],
        ["2", "characters"],
        ["3", "added"],
        ["4", "entity"],
        ["5", "look-alike"],
        ["5", "unknown"],
    ]
    assert lines[7] == "5\tunknown\t16\t33.33%"
    assert lines[8].startswith("48 words, ")
    assert lines[8].endswith("pieces per word, 33.333% of words with an [UNK]")
    assert lines[9] == "most frequent words that become [UNK]: ☃ (8), ﬁve (8)"
    table = lines.index("word\tcount\tpieces\tsaves")
    assert [line.split("\t")[1] for line in lines[table + 1 : table + 3]] == ["8", "8"]
    assert lines[-1].startswith("adding the best ")
    rare = run("coverage", text, "--model", way.vocabulary, "--minimum", 9).out.splitlines()
    assert rare[-1] == "no word is worth adding"


def test_tokens_tell_the_rungs(run: Cloze, way: Way, entities: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("quixotic\n", encoding="utf-8")
    flags = ("--entities", entities, "--characters", "--look-alikes")
    done = run(
        "extend", "--model", way.pretrained, "--words", tmp_path / "words.txt", *flags, "--out", tmp_path / "more"
    )
    assert done.out.splitlines() == [
        f"{tmp_path / 'more'}: 501 pieces, 1 entities",
        "1 words added: 0 in unused entries, 1 in new entries",
    ]
    given = "Quixotic sherlock holmes ☃ and ﬁt"
    told = json.loads(run("tokens", given, "--model", tmp_path / "more", "--json").out)
    assert [(word["text"], word["rung"], word["by"], word["type"]) for word in told["words"]] == [
        ("Quixotic", 3, "added", None),
        ("sherlock holmes", 4, "entity", "person"),
        ("☃", 5, "unknown", None),
        ("and", 1, "word", None),
        ("ﬁt", 5, "look-alike", None),
    ]
    assert told["unknown"] == 1
    assert [number for word in told["words"] for number in word["ids"]] == told["ids"][1:-1]
    assert [piece for word in told["words"] for piece in word["pieces"]] == told["tokens"][1:-1]
    assert [given[word["start"] : word["end"]] for word in told["words"]] == [word["text"] for word in told["words"]]
    lines = run("tokens", given, "--model", tmp_path / "more").out.splitlines()
    assert lines[0] == "piece\tid\tsegment\toffsets\trung"
    assert lines[1] == "[CLS]\t2\t0\t\t"
    assert lines[2] == "quixotic\t500\t0\t0-8\t3 added"
    assert [line.split("\t")[3:] for line in lines[3:5]] == [["9-24", "4 entity (person)"], ["9-24", ""]]
    assert lines[-1] == "[UNK] tokens: 1"


def test_known_words_are_told(run: Cloze, way: Way, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("the\nand\nof\nto\nin\nit\nquixotic\n", encoding="utf-8")
    done = run("extend", "--model", way.vocabulary, "--words", tmp_path / "words.txt", "--out", tmp_path / "more")
    assert done.out.splitlines()[-1] == "6 already known: the, and, of, to, in, ..."


def test_similar_characters(run: Cloze, way: Way, tmp_path: Path) -> None:
    (tmp_path / "similar.tsv").write_text("☃\tsnow\n", encoding="utf-8")
    run("extend", "--model", way.vocabulary, "--similar", tmp_path / "similar.tsv", "--out", tmp_path / "more")
    told = json.loads(run("tokens", "☃", "--model", tmp_path / "more", "--json").out)
    assert told["words"][0]["by"] == "look-alike"
    assert (
        told["words"][0]["pieces"]
        == json.loads(run("tokens", "snow", "--model", way.vocabulary, "--json").out)["tokens"][1:-1]
    )


def test_prepared_text_knows_its_ladder(run: Cloze, way: Way, text: Path, entities: Path, tmp_path: Path) -> None:
    """Text prepared without out-of-vocabulary rungs is not reused, or trained on, by a model with them."""
    more, data = tmp_path / "more", tmp_path / "data"
    assert run("extend", "--model", way.pretrained, "--entities", entities, "--out", more).code == 0
    small = ("--preset", "tiny", "--steps", 1, "--batch", 2, "--length", 16)
    result = run("pretrain", way.data, "--model", more, *small[2:], "--out", tmp_path / "run")
    assert "the text was prepared with another vocabulary; prepare it with --vocab" in result.complaint
    assert run("prepare", text, "--vocab", way.pretrained / "model", "--out", data, "--held-out", 0).code == 0
    again = run("prepare", text, "--vocab", more, "--out", data, "--held-out", 0)
    assert (again.code, "was prepared with other settings (vocabulary differ)" in again.complaint) == (2, True)
    assert run("prepare", text, "--vocab", more, "--out", tmp_path / "other", "--held-out", 0).code == 0
    assert Tokenizer.from_folder(tmp_path / "other").settings.ladder == load_folder(more).tokenizer.settings.ladder


MISTAKES = {
    "extend --model {pretrained} --out {folder}/more": "nothing to add; give --words",
    "extend --model {pretrained} --positions 8 --out {folder}/more": "positions is 8, but the model already has 512",
    "extend --model {pretrained} --segments four --out {folder}/more": "--segments",
    "extend --model {vocabulary} --segments 4 --out {folder}/more": "a vocabulary has no positions or",
    "extend --model {pretrained} --words {folder}/none --out {folder}/more": "none does not exist",
    "extend --model {folder}/none --characters --out {folder}/more": "none: no such folder",
    "extend --model {pretrained} --words {folder}/bad.txt --out {folder}/more": "bad.txt:2: '##s' begins with ##",
    "extend --model {pretrained} --entities {folder}/bad.txt --out {folder}/more": "bad.txt:1: 'good' has 1 fields",
    "extend --model {pretrained} --similar {folder}/bad.txt --out {folder}/more": "bad.txt:1: 'good'; expected one",
    "extend --model {pretrained} --characters --out {folder}": "exists and is not a model folder",
    "extend --model {vocabulary} --characters --out {folder}": "exists and is not a vocabulary folder",
    "extend --model {pretrained} --words {folder}/bad.txt --start middle --out {folder}/more": "--start",
    "coverage {folder}/none.txt --model {pretrained}": "none.txt: no such file",
    "coverage {folder}/blank.txt --model {pretrained}": "blank.txt: contains no words; give a text with words",
    "coverage {text} --model {folder}/none": "none: no such folder",
    "coverage {text} --model {pretrained} --output {folder}/words.jsonl": "expected .tsv",
    "coverage {text} --model {pretrained} --best 0": "best is 0; expected at least 1",
    "coverage {text} --model {pretrained} --top -1": "top is -1; expected at least 1",
    "coverage {text} --model {pretrained} --minimum 0": "minimum is 0; expected at least 1",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_are_one_line(run: Cloze, way: Way, tmp_path: Path, command: str) -> None:
    (tmp_path / "bad.txt").write_text("good\n##s\n", encoding="utf-8")
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    result = run(*(word.format(folder=tmp_path, **vars(way)) for word in command.split()))
    assert (result.code, result.out) == (2, "")
    assert MISTAKES[command] in result.complaint
    assert sorted(tmp_path.rglob("*")) == before
