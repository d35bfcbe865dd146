"""Distillation on raw text: texts, the cache of the teacher's vectors, students, runs and errors."""

import errno
import gzip
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import cloze
from cloze.checkpoint import EmbeddingSettings, ModelFolder, load_folder, save_folder
from cloze.checkpoint.pooling_files import Projection
from cloze.errors import ClozeError, ConfigError, DataError
from cloze.model import Bert, HeadName
from cloze.predict import load
from cloze.progress import Interrupted, Silent
from cloze.text import Tokenizer, learn_pieces, split_sentences
from cloze.train.distillation.raw_text import TextBatches, TextSet, TextSources
from cloze.train.distillation.settings import TextDistillSettings
from cloze.train.distillation.students import make_text_student
from cloze.train.distillation.teacher_vectors import TeacherVectors, agreement_with_teacher
from cloze.train.distillation.text_distillation import distill_text
from cloze.train.run import Run
from tests.corpus.texts import as_text, make_documents
from tests.model.made import SMALL, assert_close
from tests.train.made import Listener, interrupted_at
from tests.train.pretraining.test_pretrain import weights

CPU = torch.device("cpu")
QUICK = TextDistillSettings(
    objective="vectors",
    steps=10,
    batch_size=16,
    max_length=48,
    learning_rate=2e-3,
    held_out=0.1,
    evaluate_every=5,
    precision="fp32",
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(as_text(make_documents(60, seed=5)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def teacher(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random sentence encoder of four layers: mean pooling and unit vectors, without heads."""
    folder = tmp_path_factory.mktemp("teacher") / "model"
    tokenizer = Tokenizer.from_folder(data).with_max_length(48)
    save_folder(replace(sentence_encoder(tokenizer), card="---\nlicense: apache-2.0\n---\n# A model\n"), folder)
    return folder


def sentence_encoder(tokenizer: Tokenizer, **settings: Any) -> ModelFolder:
    config = replace(
        SMALL,
        vocab_size=tokenizer.size,
        hidden_size=32,
        layers=4,
        heads=4,
        feedforward_size=64,
        positions=64,
        initial_deviation=0.1,
    )
    values: dict[str, Any] = {"pooling": "mean", "normalize": True} | settings
    embedding = EmbeddingSettings(**values)
    pooler = embedding.pooling == "pooler"
    return ModelFolder(Bert.fresh(config, (), pooler=pooler, seed=1), tokenizer, embedding=embedding)


@pytest.fixture(scope="module")
def other_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    pieces = learn_pieces([sentence for document in make_documents(60) for sentence in document], 90)
    Tokenizer.from_vocabulary(pieces, lowercase=True).save(folder)
    return folder


def results_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    return found


def sentences_of(text: Path) -> list[str]:
    lines = text.read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys(sentence for line in lines for sentence in split_sentences(line)))


# -- results -----------------------------------------------------------------------------------------------------------


def test_student_comes_closer_to_its_teacher(text: Path, teacher: Path, tmp_path: Path) -> None:
    """The held-out cosine rises above that of the student before training, and the saved folder reproduces it."""
    settings = replace(QUICK, steps=60, layers=1, evaluate_every=30)
    listener = Listener()
    run = distill_text([text], teacher, tmp_path / "run", settings=settings, progress=listener)
    start = make_text_student(load_folder(teacher), settings, pooler=False, progress=Silent())
    sentences = sentences_of(text)
    wanted = load(teacher).embed(sentences)
    before = agreement_with_teacher(
        cloze.Model(replace(start, embedding=EmbeddingSettings("mean", normalize=True))).embed(sentences), wanted
    )
    student = load(run)
    after = agreement_with_teacher(student.embed(sentences), wanted)
    results = results_of(run)
    assert results["held_out_cosine"] > before["cosine"] + 0.02
    assert results["held_out_spearman"] > before["spearman"] + 0.02
    assert after["cosine"] == pytest.approx(results["held_out_cosine"], abs=0.03)
    assert results["held_out_loss"] == pytest.approx(1 - results["held_out_cosine"], abs=1e-3)
    assert results["texts"] + results["held_out_texts"] == len(sentences)
    assert results["student"] == {"layers": 1, "hidden_size": 32, "parameters": student.bert.parameter_count()}
    assert results["teacher"]["name"] == str(teacher)
    assert (student.embedding.pooling, student.embedding.normalize) == ("mean", True)
    evaluations = [line for line in listener.said if line.startswith("held out: cosine ")]
    assert len(evaluations) == 2
    assert {path.name for path in run.iterdir()} == {
        *("model", "run.json", "metrics.jsonl", "eval_results.json", "curves.png")
    }


def test_card_names_teacher_licence_text_and_command(text: Path, teacher: Path, tmp_path: Path) -> None:
    run = distill_text([text], teacher, tmp_path / "run", settings=QUICK)
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert f"from {teacher} (4 layers, hidden size 32), whose licence is: apache-2.0." in card
    assert "sentences of `text.txt` (" in card
    assert f"cloze distill --text TEXT --model {teacher} --out RUN --objective vectors" in card
    assert f"- held_out_cosine: {results_of(run)['held_out_cosine']:.4f}" in card


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "mean_max", "pooler"])
def test_sentence_transformers_load_the_student(text: Path, data: Path, pooling: str, tmp_path: Path) -> None:
    """A projection to the teacher's width is a Dense module, and both libraries compute the same vectors."""
    tokenizer = Tokenizer.from_folder(data).with_max_length(48)
    save_folder(sentence_encoder(tokenizer, pooling=pooling), tmp_path / "teacher")
    settings = replace(QUICK, preset="tiny", hidden_size=64)
    run = distill_text([text], tmp_path / "teacher", tmp_path / "run", settings=settings)
    model, sentences = load(run), sentences_of(text)[:20]
    vectors = model.embed(sentences)
    assert vectors.shape == (20, 64 if pooling == "mean_max" else 32)
    assert model.embedding.pooling == pooling
    assert model.embedding.projections
    assert_close(SentenceTransformer(str(run / "model"), device="cpu").encode(sentences), vectors)


def test_reduced_vectors_keep_the_cosines(text: Path, teacher: Path, tmp_path: Path) -> None:
    """With PCA, the student has no projection, and its vectors are compared with the reduced ones."""
    settings = replace(QUICK, steps=60, preset="tiny", hidden_size=64, match_width="pca")
    with pytest.raises(ConfigError, match="match_width is 'pca', but the student's vectors have 64 dimensions"):
        distill_text([text], teacher, tmp_path / "wider", settings=settings)
    narrow = replace(settings, preset=None, hidden_size=16, layers=2)
    with pytest.raises(Interrupted), interrupted_at(2, TextBatches):
        distill_text([text], teacher, tmp_path / "run", settings=narrow)
    components = np.load(tmp_path / "run" / "teacher" / "components.npy")
    assert components.shape == (32, 16)
    assert_close(components.T @ components, np.eye(16))
    vectors = load(teacher).embed(sentences_of(text))
    reduced = vectors @ components
    _, directions = np.linalg.eigh(vectors.T @ vectors)
    best = (np.square(vectors @ directions[:, -16:])).sum()
    assert np.square(reduced).sum() == pytest.approx(best, rel=0.01)
    run = distill_text([text], teacher, tmp_path / "run", settings=narrow)
    student = load(run)
    assert not student.embedding.projections
    assert student.embed(["the old house"]).shape == (1, 16)
    assert results_of(run)["held_out_cosine"] > 0.5


@pytest.mark.parametrize("objective", ["relations", "hidden"])
def test_losses_of_tokens_fall(text: Path, teacher: Path, objective: Any, tmp_path: Path) -> None:
    settings = replace(QUICK, objective=objective, steps=30, hidden_size=16, layers=2, evaluate_every=15)
    run = distill_text([text], teacher, tmp_path / "run", settings=settings)
    losses = [row["dev_loss"] for row in Run(run).metrics() if "dev_loss" in row]
    assert losses[1] < losses[0]
    assert results_of(run)["held_out_loss"] == losses[1]
    assert load(run).bert.config.hidden_size == 16


# -- interruptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"preset": "tiny", "hidden_size": 64},
        {"cache": False, "accumulate": 2},
        {"objective": "relations"},
        {"objective": "hidden", "hidden_size": 16, "dropout": 0.1},
        {"hours": None, "steps": None, "epochs": 2},
    ],
    ids=["projection", "no cache", "relations", "hidden", "epochs"],
)
def test_resumed_run_is_bit_identical(text: Path, teacher: Path, changes: dict[str, Any], tmp_path: Path) -> None:
    settings = replace(QUICK, **changes)
    whole = distill_text([text], teacher, tmp_path / "whole", settings=settings)
    with pytest.raises(Interrupted, match=r"stopped and saved at step [78]"), interrupted_at(7, TextBatches):
        distill_text([text], teacher, tmp_path / "run", settings=settings)
    run = distill_text([text], teacher, tmp_path / "run", settings=settings)
    assert weights(run) == weights(whole)
    assert results_of(run) == results_of(whole) | {"hours": results_of(run)["hours"]}
    dense = list((run / "model").glob("*_Dense/model.safetensors"))
    assert [path.read_bytes() for path in dense] == [
        path.read_bytes() for path in (whole / "model").glob("*_Dense/model.safetensors")
    ]
    listener = Listener()
    distill_text([text], teacher, tmp_path / "run", settings=settings, progress=listener)
    assert f"{run}: already finished; use fresh=True (--fresh) to start over" in listener.said
    with pytest.raises(ConfigError, match=r"learning_rate was 0\.002 and is now 0\.01"):
        distill_text([text], teacher, tmp_path / "run", settings=replace(settings, learning_rate=0.01))


@pytest.mark.parametrize("cut", [lambda size: size - 7, lambda size: size // 2], ids=["torn row", "torn block"])
def test_interrupted_cache_is_completed(
    text: Path, teacher: Path, cut: Callable[[int], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is interrupted while it caches vectors, and whose file is then cut off, ends bit-identical."""
    monkeypatch.setattr("cloze.train.distillation.teacher_vectors.BLOCK", 50)
    whole = distill_text([text], teacher, tmp_path / "whole", settings=QUICK)
    compute, computed = TeacherVectors.compute, list[int]()

    def interrupted(vectors: TeacherVectors, indices: Any) -> Any:
        if 150 in indices and 150 not in computed:
            os.kill(os.getpid(), signal.SIGTERM)
        computed.extend(indices)
        return compute(vectors, indices)

    monkeypatch.setattr(TeacherVectors, "compute", interrupted)
    with pytest.raises(Interrupted, match="stopped after the teacher's vectors of 150 texts"):
        distill_text([text], teacher, tmp_path / "run", settings=QUICK)
    assert computed == list(range(150))
    path = tmp_path / "run" / "teacher" / "vectors.f16"
    assert path.stat().st_size == 150 * 32 * 2
    with path.open("r+b") as file:
        file.truncate(cut(path.stat().st_size))
    computed[:] = [150]
    run = distill_text([text], teacher, tmp_path / "run", settings=QUICK)
    assert computed[1] in (0, 50), "the last complete block is computed again"
    assert weights(run) == weights(whole)


# -- the cache ---------------------------------------------------------------------------------------------------------


def open_texts(text: Path, folder: Path, tokenizer: Tokenizer) -> TextSet:
    return TextSet.open(TextSources([text], "text", "sentences", 48, tokenizer), folder, 0.1, 0, Silent())


def test_cached_vectors_equal_computed_ones(text: Path, teacher: Path, tmp_path: Path) -> None:
    contents = load_folder(teacher)
    texts = open_texts(text, tmp_path, contents.tokenizer)
    vectors = TeacherVectors(contents, texts.teacher, tmp_path, pooling=None, key={"a": 1}, device=CPU)
    indices = np.array([3, 0, 17, 100])
    direct = vectors.rows(indices)
    vectors.fill_cache(Silent())
    assert vectors.path.stat().st_size == vectors.size == len(texts.student) * 32 * 2
    assert_close(vectors.rows(indices), direct)
    expected = load(teacher).embed(sentences_of(text))[indices]
    assert np.abs(vectors.rows(indices).numpy() - expected).max() < 1e-3, "rounded to float16"
    modified = vectors.path.stat().st_mtime_ns
    again = TeacherVectors(contents, texts.teacher, tmp_path, pooling=None, key={"a": 1}, device=CPU)
    again.fill_cache(Silent())
    assert vectors.path.stat().st_mtime_ns == modified
    TeacherVectors(contents, texts.teacher, tmp_path, pooling=None, key={"a": 2}, device=CPU)
    assert not vectors.path.exists(), "another key"


def test_run_without_a_cache_is_nearly_the_same(text: Path, teacher: Path, tmp_path: Path) -> None:
    runs = [
        distill_text([text], teacher, tmp_path / str(cache), settings=replace(QUICK, cache=cache))
        for cache in (True, False)
    ]
    cosines = [results_of(run)["held_out_cosine"] for run in runs]
    assert cosines[0] == pytest.approx(cosines[1], abs=1e-3)


def test_full_disk_is_one_line(text: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cloze.train.distillation.raw_text.replace_json", full)
    with pytest.raises(
        ClozeError, match=r"run.teacher: cannot be written \(No space left on device\); free some space"
    ):
        distill_text([text], teacher, tmp_path / "run", settings=QUICK)
    monkeypatch.undo()
    monkeypatch.setattr(TeacherVectors, "compute", full)
    with pytest.raises(ClozeError, match=r"vectors\.f16: cannot be written \(No space left on device\); free some"):
        distill_text([text], teacher, tmp_path / "run", settings=QUICK)


def test_cache_without_space_is_refused(
    text: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ConfigError, match=r"needs 0 MB, but 0 MB are free; .*cache=False \(--no-cache\)"):
        distill_text([text], teacher, tmp_path / "run", settings=QUICK)


def test_size_of_the_cache_is_stated(text: Path, teacher: Path, tmp_path: Path) -> None:
    listener = Listener()
    distill_text([text], teacher, tmp_path / "run", settings=QUICK, progress=listener)
    count = len(sentences_of(text))
    assert any(f"cache of the teacher's vectors: {count:,} x 32 numbers in float16" in line for line in listener.said)


# -- texts -------------------------------------------------------------------------------------------------------------


def test_texts_are_sentences_without_duplicates(text: Path, data: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(data)
    texts = open_texts(text, tmp_path, tokenizer)
    found = [texts.student[index].ids for index in range(len(texts.student))]
    assert found == [encoding.ids for encoding in tokenizer.encode_batch(sentences_of(text))]
    assert texts.student.lengths.tolist() == [len(ids) for ids in found]
    assert sorted([*texts.train, *texts.held_out]) == list(range(len(found)))
    assert len(texts.held_out) == round(0.1 * len(found))


def test_long_sentences_are_split(tmp_path: Path, data: Path) -> None:
    """No token is lost if there are spaces between the words; words alone are split in the middle."""
    tokenizer, path = Tokenizer.from_folder(data), tmp_path / "long.txt"
    lines = [" ".join(["river", "old", "house"] * number) for number in range(1, 60)]
    path.write_text("\n\n".join(lines), encoding="utf-8")
    pieces = [ids for ids, _ in TextSources([path], "text", "sentences", 24, tokenizer)]
    assert max(map(len, pieces)) <= 22
    assert list(chain(*pieces)) == list(chain(*tokenizer.encode_ids(lines)))
    path.write_text("garden" * 14, encoding="utf-8")
    pieces = [ids for ids, _ in TextSources([path], "text", "sentences", 24, tokenizer)]
    assert max(map(len, pieces)) <= 22
    assert tokenizer.decode(list(chain(*pieces))).replace(" ", "") == "garden" * 14


def test_passages_fill_the_length_within_documents(text: Path, data: Path) -> None:
    tokenizer = Tokenizer.from_folder(data)
    documents = [
        [tokenizer.encode_ids([sentence])[0] for line in block.split("\n") for sentence in split_sentences(line)]
        for block in text.read_text(encoding="utf-8").split("\n\n")
    ]
    expected = []
    for document in documents:
        passage = list[int]()
        for sentence in document:
            if passage and len(passage) + len(sentence) > 62:
                expected.append(passage)
                passage = []
            passage = passage + sentence
        expected.append(passage)
    found = [ids for ids, _ in TextSources([text], "text", "passages", 64, tokenizer)]
    assert found == expected
    assert len(found) < sum(map(len, documents))


def test_columns_and_compressed_files(text: Path, data: Path, tmp_path: Path) -> None:
    """Texts may be in a column of JSONL and in compressed files; several files are read in order."""
    tokenizer, lines = Tokenizer.from_folder(data), sentences_of(text)
    rows, packed = tmp_path / "rows.jsonl", tmp_path / "more.txt.gz"
    rows.write_text("".join(json.dumps({"body": line}) + "\n" for line in lines[:40]), encoding="utf-8")
    packed.write_bytes(gzip.compress("\n".join(lines[40:]).encode()))
    found = [ids for ids, _ in TextSources([rows, packed], "body", "sentences", 48, tokenizer)]
    assert found == tokenizer.encode_ids(lines)
    with pytest.raises(DataError, match="no column 'text'; it has: body"):
        list(TextSources([rows], "text", "sentences", 48, tokenizer))


def test_prepared_corpus_gives_its_sentences(data: Path, other_vocabulary: Path) -> None:
    tokenizer = Tokenizer.from_folder(data)
    sources = TextSources([data], "text", "sentences", 24, tokenizer)
    sources.check()
    text = data.parent / "text.txt"
    all_ids = {tuple(ids) for ids, _ in TextSources([text], "text", "sentences", 24, tokenizer)}
    found = [tuple(ids) for ids, _ in sources]
    whole = [ids for ids in found if len(ids) < 22]
    assert len(whole) > 100
    assert set(whole) <= all_ids
    other = replace(sources, student=Tokenizer.from_folder(other_vocabulary))
    with pytest.raises(DataError, match="is prepared with another vocabulary than that of the student or the teacher"):
        other.check()


def test_order_depends_on_seed_and_step_only(text: Path, data: Path, tmp_path: Path) -> None:
    texts = open_texts(text, tmp_path, Tokenizer.from_folder(data))
    first, second = (TextBatches(texts, 16, 0, CPU) for _ in range(2))
    steps = first.steps_per_epoch
    rows = [first.at(step) for step in range(2 * steps)]
    for step in (2 * steps - 1, 1, steps):
        batch, again = rows[step], second.at(step)
        assert batch is not None
        assert again is not None
        assert torch.equal(batch.inputs.ids, again.inputs.ids)
    epoch = sorted(
        tuple(ids[real].tolist())
        for batch in rows[:steps]
        if batch is not None
        for ids, real in zip(batch.inputs.ids, batch.inputs.real, strict=True)
    )
    assert epoch == sorted(tuple(texts.student[index].ids) for index in texts.train)
    other = TextBatches(texts, 16, 1, CPU).at(0)
    assert other is not None
    assert rows[0] is not None
    assert not torch.equal(other.inputs.ids, rows[0].inputs.ids)


def test_documents_in_memory(teacher: Path) -> None:
    texts = {"text": [" ".join(document) for document in make_documents(30)]}
    with cloze.distill(
        text=texts, model=teacher, layers=1, steps=5, batch_size=8, max_length=24, progress=False
    ) as run:
        assert run.metrics["held_out_cosine"] > 0
        assert next(iter(run.metrics)) == "held_out_cosine"
        assert run.model.bert.config.layers == 1
        assert "held_out_cosine" in str(run)
    with pytest.raises(ConfigError, match="dev is given, but no task"):
        cloze.distill(text=texts, dev=texts, model=teacher)
    with pytest.raises(ConfigError, match=r"neither a task nor a text is given"):
        cloze.distill(model=teacher)
    with pytest.raises(ConfigError, match="settings is DistillSettings, which is for a task"):
        cloze.distill(text=texts, model=teacher, settings=cloze.DistillSettings())
    with pytest.raises(ConfigError, match="there is no setting 'temperature'"):
        cloze.distill(text=texts, model=teacher, temperature=2.0)


# -- students ----------------------------------------------------------------------------------------------------------


def test_new_student_starts_from_the_layers_of_the_teacher(teacher: Path, other_vocabulary: Path) -> None:
    contents, listener = load_folder(teacher), Listener()
    student = make_text_student(contents, replace(QUICK, layers=2), pooler=False, progress=listener)
    assert listener.said == ["student: 2 layers, hidden size 32; initialized from layers 2, 4 of the teacher"]
    theirs, ours = contents.model.encoder, student.model.encoder
    assert torch.equal(ours.layers[1].expand.weight, theirs.layers[3].expand.weight)
    assert torch.equal(ours.embeddings.token.weight, theirs.embeddings.token.weight)
    assert student.tokenizer.max_length == contents.tokenizer.max_length
    # With another vocabulary, the embeddings of the pieces in both vocabularies are copied.
    mixed = make_text_student(contents, replace(QUICK, vocab=str(other_vocabulary)), pooler=False, progress=listener)
    piece = next(piece for piece in mixed.tokenizer.pieces if contents.tokenizer.id(piece) and len(piece) > 3)
    rows = (mixed.model.token_table.weight, mixed.tokenizer), (contents.model.token_table.weight, contents.tokenizer)
    assert torch.equal(*(table[tokenizer.id(piece) or 0] for table, tokenizer in rows))
    assert mixed.tokenizer.size != contents.tokenizer.size
    random = make_text_student(contents, replace(QUICK, start="random"), pooler=False, progress=listener)
    assert "initialized randomly" in listener.said[-1]
    assert not torch.equal(random.model.token_table.weight, theirs.embeddings.token.weight)
    assert random.tokenizer.max_length == 48, "no longer than it is trained on"


def test_narrower_student_starts_from_principal_components_of_the_embeddings(
    teacher: Path, other_vocabulary: Path
) -> None:
    contents, listener = load_folder(teacher), Listener()
    narrow = replace(QUICK, hidden_size=16)
    student = make_text_student(contents, narrow, pooler=False, progress=listener)
    assert listener.said[-1] == (
        "student: 2 layers, hidden size 16; layers initialized randomly, embeddings from the principal components of "
        "the teacher's"
    )
    ours, theirs = student.model.encoder.embeddings, contents.model.encoder.embeddings
    # The singular value decomposition of the token table gives the best approximation of that rank.
    wanted = np.linalg.svd(theirs.token.weight.detach().double().numpy(), full_matrices=False)
    best = (wanted.U * wanted.S)[:, :16]
    products = ours.token.weight.detach().double().numpy()
    np.testing.assert_allclose(products @ products.T, best @ best.T, atol=1e-4)
    np.testing.assert_allclose(
        (ours.position.weight @ ours.token.weight.T).detach().numpy(),
        theirs.position.weight.detach().numpy() @ wanted.Vh.T[:, :16] @ best.T,
        atol=1e-4,
    )
    assert student.tokenizer.max_length == contents.tokenizer.max_length
    again = make_text_student(contents, narrow, pooler=False, progress=listener)
    assert torch.equal(again.model.token_table.weight, student.model.token_table.weight)
    mixed = make_text_student(contents, replace(narrow, vocab=str(other_vocabulary)), pooler=False, progress=listener)
    piece = next(piece for piece in mixed.tokenizer.pieces if contents.tokenizer.id(piece) and len(piece) > 3)
    rows = (mixed.model.token_table.weight, mixed.tokenizer), (student.model.token_table.weight, contents.tokenizer)
    assert torch.equal(*(table[tokenizer.id(piece) or 0] for table, tokenizer in rows))


def test_precision_of_the_teacher(text: Path, teacher: Path, tmp_path: Path) -> None:
    settings = replace(QUICK, steps=2, teacher_precision="int8")
    contents = load_folder(teacher)
    texts = open_texts(text, tmp_path, contents.tokenizer).teacher
    arguments: dict[str, Any] = {"pooling": None, "key": {"a": 1}, "device": CPU}
    vectors = TeacherVectors(contents, texts, tmp_path, precision="int8", **arguments)
    embedder = load(teacher, precision="int8")
    assert np.abs(vectors.rows(np.arange(20)).numpy() - embedder.embed(sentences_of(text)[:20])).max() < 1e-3
    run = distill_text([text], teacher, tmp_path / "run", settings=settings)
    with pytest.raises(ConfigError, match="teacher_precision"):
        distill_text([text], teacher, run, settings=replace(settings, teacher_precision="fp32"))
    with pytest.raises(ConfigError, match="teacher_precision is 'int8', which is for the objective vectors"):
        cloze.TextDistillSettings(objective="relations", teacher_precision="int8")


def test_given_student_with_another_vocabulary(
    text: Path, teacher: Path, other_vocabulary: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_folder(other_vocabulary).with_max_length(16)
    given = sentence_encoder(tokenizer)
    heads: tuple[HeadName, ...] = ("mlm",)
    save_folder(replace(given, model=Bert.fresh(given.model.config, heads)), tmp_path / "given")
    listener, settings = Listener(), replace(QUICK, objective=None, student=str(tmp_path / "given"))
    run = distill_text([text], teacher, tmp_path / "run", settings=settings, progress=listener)
    assert listener.said[:2] == [
        "objective vectors: the vocabularies differ; objective (--objective) overrides",
        f"{tmp_path / 'given'}: its heads mlm are dropped; they fit its old states only",
    ]
    assert load(run).tokenizer.size == tokenizer.size
    assert load(run).tokenizer.max_length == 48


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["relations", "hidden"])
def test_tokens_need_one_vocabulary(
    text: Path, teacher: Path, other_vocabulary: Path, objective: Any, tmp_path: Path
) -> None:
    settings = replace(QUICK, objective=objective, vocab=str(other_vocabulary))
    with pytest.raises(ConfigError, match="compares tokens, but the student has another vocabulary than the teacher"):
        distill_text([text], teacher, tmp_path / "run", settings=settings)


def test_default_objective_and_missing_pooling(text: Path, base: Path, tmp_path: Path) -> None:
    listener, settings = Listener(), replace(QUICK, objective=None, steps=2)
    distill_text([text], base, tmp_path / "run", settings=settings, progress=listener)
    assert "objective relations: the teacher is not made for sentence vectors" in listener.said[0]
    plain = tmp_path / "plain"
    save_folder(load_folder(base), plain)
    (plain / "modules.json").unlink()
    with pytest.raises(ConfigError, match=r"has no pooling for sentence vectors \(no modules\.json\); give pooling"):
        distill_text([text], plain, tmp_path / "other", settings=QUICK)
    run = distill_text([text], plain, tmp_path / "other", settings=replace(QUICK, pooling="cls", steps=2))
    assert load(run).embedding.pooling == "cls"


def test_shapes_are_checked_before_the_run_starts(text: Path, teacher: Path, tmp_path: Path) -> None:
    settings = replace(QUICK, objective="relations", hidden_size=16, layers=2, relation_heads=5)
    with pytest.raises(ConfigError, match="relation_heads is 5; expected a divisor of both hidden sizes, 16 and 32"):
        distill_text([text], teacher, tmp_path / "run", settings=settings)
    with pytest.raises(ConfigError, match="teacher_layer is 9, but the teacher has 4 layers"):
        distill_text([text], teacher, tmp_path / "run", settings=replace(QUICK, objective="relations", teacher_layer=9))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("width", "rate"), [(384, 1e-3), (512, 5e-4)])
def test_default_learning_rate_depends_on_the_width(
    text: Path, teacher: Path, width: int, rate: float, tmp_path: Path
) -> None:
    settings = replace(QUICK, learning_rate=None, hidden_size=width, layers=1, steps=1)
    run = distill_text([text], teacher, tmp_path / "run", settings=settings)
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["learning_rate"] == rate


def test_too_little_text(teacher: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("One sentence. Another one.\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"short\.txt: 2 different texts; expected at least 50"):
        distill_text([path], teacher, tmp_path / "run", settings=QUICK)
    with pytest.raises(DataError, match=r"missing\.txt: no such file or folder"):
        distill_text([tmp_path / "missing.txt"], teacher, tmp_path / "run", settings=QUICK)


def test_lengths_that_a_model_cannot_read(text: Path, teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_length is 64, but the teacher accepts at most 48 tokens"):
        distill_text([text], teacher, tmp_path / "run", settings=replace(QUICK, max_length=64))
    run = distill_text([text], teacher, tmp_path / "run", settings=replace(QUICK, max_length=None, start="random"))
    assert load(run).tokenizer.max_length == 48
    with pytest.raises(ConfigError, match="batch_size is 9999, but there are only"):
        distill_text([text], teacher, tmp_path / "other", settings=replace(QUICK, batch_size=9999))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"objective": "vector"}, "unknown objective 'vector'; did you mean 'vectors'"),
        ({"objective": "hidden", "relation_heads": 4}, "relation_heads is 4, which is for the objective relations"),
        ({"student": "x", "preset": "mini"}, "student and preset exclude each other"),
        ({"steps": 3, "epochs": 3}, "epochs and steps exclude each other"),
        ({"held_out": 0.0}, "held_out is 0.0; expected a fraction above 0, up to 0.5"),
        ({"layers": 0}, "layers is 0; expected at least 1"),
        ({"max_length": 2}, "max_length is 2; expected at least 3"),
        ({"learning_rate": 2.0}, "learning_rate is 2.0"),
    ],
)
def test_bad_settings(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TextDistillSettings(**values)


def test_projections_of_the_teacher_are_part_of_its_vectors(text: Path, data: Path, tmp_path: Path) -> None:
    """A whitened teacher teaches its whitened vectors, whose size the student's projection has."""
    generator = torch.Generator().manual_seed(1)
    projection = Projection(torch.randn(8, 32, generator=generator), torch.randn(8, generator=generator))
    tokenizer = Tokenizer.from_folder(data).with_max_length(48)
    save_folder(sentence_encoder(tokenizer, projections=(projection,)), tmp_path / "teacher")
    run = distill_text([text], tmp_path / "teacher", tmp_path / "run", settings=replace(QUICK, steps=40))
    vectors, wanted = (load(path).embed(sentences_of(text)) for path in (run, tmp_path / "teacher"))
    assert vectors.shape == wanted.shape
    assert agreement_with_teacher(vectors, wanted)["cosine"] > 0.8
