import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from cloze.checkpoint import EmbeddingSettings, ModelFolder, load_folder, save_folder
from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import PrepareSettings
from cloze.corpus.shards import Corpus, read_manifest
from cloze.errors import ConfigError, DataError
from cloze.model import Bert, BertConfig
from cloze.progress import Interrupted
from cloze.text import Tokenizer, learn_pieces
from cloze.train.pretraining.pretrain import pretrain
from cloze.train.settings import PretrainSettings
from tests.corpus.texts import as_text, make_documents
from tests.train.made import Listener, make_bert

SETTINGS = PretrainSettings(
    preset="tiny", steps=6, batch_size=4, max_length=24, save_every=2, evaluate_every=3, learning_rate=1e-3, seed=5
)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrain(data, tmp_path_factory.mktemp("run") / "run", settings=SETTINGS)


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at = PretrainingBatches.at

    def disturbed(batches: PretrainingBatches, wanted: int, part: int = 0, parts: int = 1) -> PretrainingBatch:
        if wanted == step and batches.seed == SETTINGS.seed:  # exclude evaluation batches
            os.kill(os.getpid(), signal.SIGTERM)
        return at(batches, wanted, part, parts)

    monkeypatch.setattr(PretrainingBatches, "at", disturbed)


def test_finished_run_holds_a_model_and_its_story(finished: Path, data: Path) -> None:
    assert {path.name for path in finished.iterdir()} == {
        "run.json",
        "metrics.jsonl",
        "eval_results.json",
        "curves.png",
        "model",
    }
    results = json.loads((finished / "eval_results.json").read_text(encoding="utf-8"))
    assert results.keys() == {
        "steps",
        "hours",
        "tokens_seen",
        "held_out_mlm_loss",
        "held_out_perplexity",
        "held_out_mlm_loss_per_word",
        "held_out_mlm_loss_per_character",
        "held_out_mlm_accuracy",
        "held_out_nsp_loss",
        "held_out_nsp_accuracy",
        "held_out_nsp_constant",
    }
    assert 0.5 <= results["held_out_nsp_constant"] <= 1
    steps = [json.loads(line)["step"] for line in (finished / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert steps == [3, 6, 6]  # two evaluations and one line of losses
    model = load_folder(finished)
    assert model.model.head_names == ("mlm", "nsp")
    assert model.tokenizer.pieces == Tokenizer.from_folder(data).pieces
    assert model.card is not None
    assert f"held_out_mlm_loss: {results['held_out_mlm_loss']:.4f}" in model.card


def test_interrupted_and_resumed_gives_the_same_model(
    data: Path, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(3, monkeypatch)
    with pytest.raises(Interrupted, match="stopped and saved at step 4"):
        pretrain(data, tmp_path / "run", settings=SETTINGS)
    monkeypatch.undo()
    assert weights(pretrain(data, tmp_path / "run", settings=SETTINGS)) == weights(finished)


def test_finished_run_returns_at_once(finished: Path, data: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    listener = Listener()
    assert pretrain(data, finished, settings=SETTINGS, progress=listener) == finished
    assert listener.said == [f"{finished}: already finished; use fresh=True (--fresh) to start over"]
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_changed_settings_are_refused_until_fresh(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(3, monkeypatch)
    with pytest.raises(Interrupted, match="stopped and saved at step 4"):
        pretrain(data, tmp_path / "run", settings=SETTINGS)
    monkeypatch.undo()
    changed = PretrainSettings(preset="tiny", steps=1, batch_size=2, max_length=24, save_every=2, evaluate_every=3)
    with pytest.raises(
        ConfigError,
        match=r"batch_size was 4 and is now 2; learning_rate was 0\.001 and is now 0\.0005; seed was 5 and is now 0; "
        r"steps was 6 and is now 1; choose another out \(--out\), or start over with fresh=True",
    ):
        pretrain(data, tmp_path / "run", settings=changed)
    listener = Listener()
    folder = pretrain(data, tmp_path / "run", settings=changed, fresh=True, progress=listener)
    assert listener.said == []  # nothing was resumed
    assert json.loads((folder / "eval_results.json").read_text(encoding="utf-8"))["steps"] == 1


def test_folder_of_others_is_left_alone(data: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear all", encoding="utf-8")
    for place in (tmp_path, tmp_path / "letter.txt"):
        with pytest.raises(ConfigError, match="exists but is not a run; choose another out"):
            pretrain(data, place, settings=SETTINGS, fresh=True)
    assert (tmp_path / "letter.txt").read_text(encoding="utf-8") == "dear all"


def test_mistakes_are_found_before_the_folder_is_made(data: Path, tmp_path: Path) -> None:
    mistakes: list[tuple[Path, PretrainSettings, str | None, str]] = [
        (tmp_path, SETTINGS, None, "not a prepared corpus"),
        (data, PretrainSettings(preset="tinny"), None, "unknown preset 'tinny'; did you mean 'tiny'"),
        (data, PretrainSettings(preset="tiny", batch_size=5000), None, "fewer than one batch of 5000"),
        (data, SETTINGS, "warp", "device 'warp' is not available on this machine"),
    ]
    for corpus, settings, device, message in mistakes:
        with pytest.raises((ConfigError, DataError), match=message):
            pretrain(corpus, tmp_path / "run", settings=settings, device=device)
        assert not (tmp_path / "run").exists()


def test_a_corpus_with_a_flipped_byte_is_refused_before_the_folder_is_made(data: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(data, tmp_path / "data")
    path = damaged / "shards" / "00000" / "train-tokens.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train-tokens\.bin: shard 00000 was damaged after it was written"):
        pretrain(damaged, tmp_path / "run", settings=SETTINGS)
    assert not (tmp_path / "run").exists()


def test_loss_falls_where_there_is_something_to_learn(tmp_path: Path) -> None:
    # Twenty documents that repeat one of two sentences: each word follows from its neighbours.
    sentences = ["The old captain follows the silver river.", "Winter music leaves every small garden slowly."]
    text = "\n\n".join("\n".join([sentences[number % 2]] * 12) for number in range(20))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    Tokenizer.from_vocabulary(learn_pieces(sentences * 5, 100), lowercase=True).save(tmp_path / "vocabulary")
    data = prepare([tmp_path / "text.txt"], tmp_path / "vocabulary", tmp_path / "data", settings=PrepareSettings(0))
    settings = PretrainSettings(preset="tiny", steps=60, batch_size=8, max_length=32, learning_rate=2e-3, dropout=0.0)
    run = pretrain(data, tmp_path / "run", settings=settings)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [json.loads(line)["mlm_loss"] for line in lines]
    # Word frequencies alone give a loss of 2.6 nats per word; a much lower loss requires the context.
    assert losses[0] > 2.6
    assert losses[-1] < 2.0
    results = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    assert results.keys() == {"steps", "hours", "tokens_seen"}  # no text was held out


def equal(one: nn.Module, other: nn.Module) -> bool:
    state = other.state_dict()
    return all(torch.allclose(tensor, state[name], atol=1e-9) for name, tensor in one.state_dict().items())


def test_goes_on_from_a_model_with_its_heads(data: Path, base: Path, tmp_path: Path) -> None:
    # At this learning rate, existing parameters do not change.
    settings = PretrainSettings(steps=1, batch_size=4, max_length=24, learning_rate=1e-12, weight_decay=0.0)
    listener = Listener()
    run = pretrain(data, tmp_path / "run", model=base, settings=settings, progress=listener)
    assert listener.said == []
    assert equal(load_folder(run).model, load_folder(base).model)
    assert not equal(load_folder(run).model, make_bert(data, seed=3))


def test_dropout_is_the_models_own_unless_it_is_given(data: Path, finished: Path, tmp_path: Path) -> None:
    one_step = replace(SETTINGS, steps=1)
    assert load_folder(finished).model.config.dropout == 0.1
    quiet = pretrain(data, tmp_path / "quiet", model=finished, settings=replace(one_step, dropout=0.0))
    still = pretrain(data, tmp_path / "still", model=quiet, settings=one_step)
    for run in (quiet, still):
        config = load_folder(run).model.config
        assert (config.dropout, config.attention_dropout) == (0.0, 0.0)
        assert "dropout 0," in (run / "model" / "README.md").read_text("utf-8")


def test_missing_heads_start_anew_and_are_told(data: Path, tmp_path: Path) -> None:
    tokenizer, config = Tokenizer.from_folder(data), make_bert(data).config
    save_folder(ModelFolder(Bert.fresh(config, seed=9), tokenizer), tmp_path / "bare")
    listener = Listener()
    settings = PretrainSettings(steps=1, batch_size=4, max_length=24, learning_rate=1e-12, weight_decay=0.0)
    run = pretrain(data, tmp_path / "run", model=tmp_path / "bare", settings=settings, progress=listener)
    assert listener.said == [f"{tmp_path / 'bare'}: lacks the heads mlm, nsp; new ones start at random"]
    assert equal(load_folder(run).model.encoder, load_folder(tmp_path / "bare").model.encoder)


def test_model_of_another_vocabulary_is_refused(data: Path, tmp_path: Path) -> None:
    pieces = learn_pieces([sentence for document in make_documents(9, seed=8) for sentence in document], 90)
    config = BertConfig(len(pieces), hidden_size=32, layers=1, heads=2, feedforward_size=64)
    foreign = tmp_path / "foreign"
    save_folder(ModelFolder(Bert.fresh(config), Tokenizer.from_vocabulary(pieces, lowercase=True)), foreign)
    with pytest.raises(DataError, match=r"prepared with another vocabulary; prepare it with --vocab .*foreign"):
        pretrain(data, tmp_path / "run", model=foreign, settings=SETTINGS)


def test_longest_input_is_what_was_trained(finished: Path, data: Path, tmp_path: Path) -> None:
    assert load_folder(finished).tokenizer.max_length == 24
    longer = pretrain(data, tmp_path / "longer", model=finished, settings=replace(SETTINGS, max_length=40, steps=1))
    shorter = pretrain(data, tmp_path / "shorter", model=finished, settings=replace(SETTINGS, max_length=16, steps=1))
    assert load_folder(longer).tokenizer.max_length == 40
    assert load_folder(shorter).tokenizer.max_length == 24


def test_fresh_is_heard_once(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--fresh is applied once: a launcher that restarts a dead process uses the same command."""
    interrupt_at(3, monkeypatch)
    message = r"stopped and saved at step 4; run the same command, without fresh=True \(--fresh\), to resume"
    with pytest.raises(Interrupted, match=message):
        pretrain(data, tmp_path / "run", settings=SETTINGS, fresh=True)
    monkeypatch.undo()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    listener = Listener()
    pretrain(data, tmp_path / "run", settings=SETTINGS, fresh=True, progress=listener)
    assert listener.said == ["resuming at step 4"]


def test_casing_is_a_part_of_the_vocabulary(data: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(data)
    cased = Tokenizer(replace(tokenizer.settings, lowercase=False))
    save_folder(ModelFolder(make_bert(data), cased), tmp_path / "cased")
    with pytest.raises(DataError, match="prepared with another vocabulary"):
        pretrain(data, tmp_path / "run", model=tmp_path / "cased", settings=SETTINGS)


def test_a_large_batch_does_not_hide_the_held_out_text(data: Path, tmp_path: Path) -> None:
    count = Corpus.open(data).document_count
    listener = Listener()
    settings = replace(SETTINGS, steps=1, batch_size=max(16, count // 2), max_length=24)
    run = pretrain(data, tmp_path / "run", settings=settings, progress=listener)
    assert "held_out_mlm_loss" in json.loads((run / "eval_results.json").read_text(encoding="utf-8"))


def test_what_a_card_says_of_its_beginnings(data: Path, finished: Path, tmp_path: Path) -> None:
    run = pretrain(data, tmp_path / "run", model=finished, settings=replace(SETTINGS, steps=1))
    card = (run / "model" / "README.md").read_text("utf-8")
    assert f"next-sentence prediction, further from {finished}." in card
    ((name, digest),) = read_manifest(data)["recipe"]["texts"]
    assert f"- files: `{name}` ({digest[:12]})\n" in card
    assert "prediction, from scratch." in (finished / "model" / "README.md").read_text("utf-8")


def test_what_a_training_does_not_take_over_is_told(data: Path, finished: Path, tmp_path: Path) -> None:
    base = load_folder(finished)
    save_folder(replace(base, embedding=EmbeddingSettings("cls", normalize=True)), tmp_path / "base")
    listener = Listener()
    settings = replace(SETTINGS, objective="none", steps=1)
    run = pretrain(data, tmp_path / "run", model=tmp_path / "base", settings=settings, progress=listener)
    assert f"{tmp_path / 'base'}: its heads nsp are not used by this objective and are dropped" in listener.said
    found = load_folder(run)
    assert found.model.head_names == ("mlm",)
    assert found.embedding == EmbeddingSettings("cls", normalize=True)


def test_a_text_without_anything_held_out_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(as_text(make_documents(20, seed=1)), encoding="utf-8")
    pieces = learn_pieces([sentence for document in make_documents(20, seed=1) for sentence in document], 90)
    Tokenizer.from_vocabulary(pieces, lowercase=True).save(tmp_path / "vocabulary")
    data = prepare([tmp_path / "text.txt"], tmp_path / "vocabulary", tmp_path / "data", settings=PrepareSettings(0))
    listener = Listener()
    run = pretrain(data, tmp_path / "run", settings=replace(SETTINGS, steps=1), progress=listener)
    assert listener.said == [
        f"{data}: too little text is held out for an evaluation; "
        "prepare it with a larger --held-out to evaluate on more"
    ]
    assert "- none: too little text was held out" in (run / "model" / "README.md").read_text("utf-8")
