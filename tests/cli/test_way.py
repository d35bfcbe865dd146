"""The whole pipeline on the command line: text, vocabulary, corpus, model, task, predictions."""

import io
import json
import shutil
from pathlib import Path

import pytest

from cloze.predict import load
from tests.cli.conftest import DEMO, Cloze, Way

FIXTURES = Path(__file__).parent.parent / "checkpoint" / "fixtures" / "tensorflow"


def test_vocabulary_is_reported(run: Cloze, way: Way, tmp_path: Path) -> None:
    result = run("vocab", way.text, "--out", tmp_path / "again", "--size", 500)
    first, second = result.out.splitlines()
    assert first == f"{tmp_path / 'again'}: 500 pieces, uncased"
    assert "pieces per word" in second
    assert (tmp_path / "again" / "vocab.txt").read_bytes() == (way.vocabulary / "vocab.txt").read_bytes()


def test_preparing_again_is_no_work(run: Cloze, way: Way) -> None:
    words = ("prepare", way.text, "--vocab", way.vocabulary, "--out", way.data, "--held-out", 0.2)
    output = json.loads(run(*words, "--json").out)
    assert output["folder"] == str(way.data)
    assert output["train"]["documents"] > output["held_out"]["documents"] > 0
    table = [line.split("\t") for line in run(*words).out.splitlines()]
    assert table[0] == [str(way.data), "documents", "sentences", "tokens", "words", "[UNK]"]
    assert table[1][3].replace(",", "") == str(output["train"]["tokens"])


def test_finished_training_shows_its_results(run: Cloze, way: Way) -> None:
    words = ("pretrain", way.data, "--preset", "tiny", "--steps", 20, "--batch", 4, "--length", 32)
    result = run(*words, "--out", way.pretrained, "--json")
    assert result.err == f"{way.pretrained}: already finished; use fresh=True (--fresh) to start over\n"
    assert json.loads(result.out)["steps"] == 20
    assert json.loads(result.out)["held_out_mlm_loss"] > 0


def test_blanks_are_filled(run: Cloze, way: Way) -> None:
    words = ("fill", "He shook his [MASK].", "[MASK] and [MASK]", "--model", way.pretrained, "--top", 3)
    first, second = (json.loads(line) for line in run(*words, "--json").out.splitlines())
    assert first["text"] == "He shook his [MASK]."
    assert [len(blank) for blank in first["blanks"] + second["blanks"]] == [3, 3, 3]
    model = load(way.pretrained)
    alone = model.fill("He shook his [MASK].", 3)[0]
    assert [word["token"] for word in first["blanks"][0]] == [word.token for word in alone]
    found = [word["probability"] for word in first["blanks"][0]]
    assert found == pytest.approx([word.probability for word in alone], rel=1e-5)
    table = run(*words).out.splitlines()
    assert table[0] == "He shook his [MASK].\tprobability"
    assert [line for line in table if "blank 2" in line] == ["[MASK] and [MASK]  (blank 2)\tprobability"]


def test_sentences_follow(run: Cloze, way: Way) -> None:
    words = ("follows", "He went in.", "He sat down.", "--model", way.pretrained)
    output = json.loads(run(*words, "--json").out)
    assert output["probability"] == load(way.pretrained).follows("He went in.", "He sat down.")
    assert run(*words).out == f"{output['probability']:.4f}\n"


def test_pieces_are_shown(run: Cloze, way: Way) -> None:
    encoding = load(way.pretrained).tokenizer("the door", "was open")
    output = json.loads(run("tokens", "the door", "--pair", "was open", "--model", way.pretrained, "--json").out)
    assert output["tokens"] == encoding.tokens
    assert output["ids"] == encoding.ids
    assert output["segments"] == encoding.segments
    table = run("tokens", "the door", "--model", way.vocabulary).out.splitlines()
    assert table[0] == "piece\tid\tsegment\toffsets\trung"
    assert table[2].split("\t")[0::3] == ["the", "0-3"]


def test_texts_come_from_standard_input(run: Cloze, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one door\n\nanother door\n"))
    lines = run("embed", "--model", way.pretrained, "--json").out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["one door", "another door"]
    assert len(json.loads(lines[0])["vector"]) == 128


def test_nothing_on_a_terminal_is_a_mistake(run: Cloze, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    result = run("embed", "--model", way.pretrained)
    assert (result.code, result.complaint[:13]) == (2, "no text given")


def test_scores_are_printed_and_saved(run: Cloze, way: Way, tmp_path: Path) -> None:
    words = ("evaluate", "classify", way.rows, "--model", way.tuned)
    output = json.loads(run(*words, "--out", tmp_path / "scores", "--json").out)
    assert list(output)[:3] == ["accuracy", "macro_f1", "rows"]
    assert output["rows"] == 60
    assert json.loads((tmp_path / "scores" / "eval_results.json").read_text(encoding="utf-8")) == output
    lines = (tmp_path / "scores" / "predictions.tsv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 61
    assert lines[1].split("\t")[0] == f"{way.rows}:2"
    low, high = output["intervals"]["accuracy"]
    printed = run(*words).out.splitlines()
    assert printed[1].startswith(f"accuracy\t{output['accuracy']:.4f}\t{low:.4f} to {high:.4f}\t")
    assert "60 rows" in printed


def test_checkpoint_of_the_original_is_converted(run: Cloze, tmp_path: Path) -> None:
    output = json.loads(run("convert", FIXTURES / "tiny_bert", tmp_path / "model", "--json").out)
    assert output["heads"] == ["mlm", "nsp"]
    assert run("fill", "[MASK]", "--model", tmp_path / "model").code == 0
    assert f"{output['parameters']:,} parameters" in run("convert", FIXTURES / "tiny_bert", tmp_path / "again").out


def test_machine_is_described(run: Cloze) -> None:
    output = json.loads(run("doctor", "--json").out)
    assert output["threads"] == 1
    assert output["torch"].startswith("2.")
    assert "threads\t1" in run("doctor").out.splitlines()


def test_bundled_sentences_can_be_filled(run: Cloze, way: Way, tmp_path: Path) -> None:
    lines = [line.split("\t")[0] for line in (DEMO / "sentences.txt").read_text(encoding="utf-8").splitlines()]
    (tmp_path / "blanks.txt").write_text("\n".join(lines), encoding="utf-8")
    result = run("fill", "--input", tmp_path / "blanks.txt", "--model", way.pretrained, "--json")
    assert [json.loads(line)["text"] for line in result.out.splitlines()] == lines


def test_run_and_its_model_folder_are_the_same_model(run: Cloze, way: Way, tmp_path: Path) -> None:
    moved = shutil.copytree(way.pretrained / "model", tmp_path / "moved")
    output = [run("follows", "a", "b", "--model", model).out for model in (way.pretrained, moved)]
    assert output[0] == output[1]
