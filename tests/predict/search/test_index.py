"""Building, searching and changing an index; kills, damage and other mistakes."""

import hashlib
import json
import shutil
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cloze
from cloze.errors import CheckpointError, ClozeError, ConfigError, DataError, RequestError
from cloze.locks import only_writer
from cloze.model import BertConfig
from cloze.predict import Model, load
from cloze.predict.search import building, query, segments
from cloze.predict.search.building import index
from cloze.predict.search.index import Index, open_index
from tests.model.made import SMALL, model_folder, saved
from tests.predict.search.conftest import made_documents


class Killed(BaseException):
    """Raised in place of a kill: nothing handles it, so that no cleanup of ours runs."""


def contents(folder: Path) -> dict[str, str]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def vectors_of(model: Model, found: Index) -> tuple[list[tuple[str, int, int]], np.ndarray[Any, Any]]:
    """Return the place of every live passage, and its vector computed by ``embed`` one by one."""
    places, vectors = [], []
    for part in segments.chained(found._segments, segments.documents_schema(found.manifest["kinds"])):
        ids, texts = (part.documents.column(name).to_pylist() for name in ("id", "text"))
        for row, start, end in part.passages.tolist():
            places.append((ids[row], start, end))
            vectors.append(model.embed([texts[row][start:end]])[0])
    vectors_array = np.stack(vectors)
    return places, vectors_array / np.linalg.norm(vectors_array, axis=1, keepdims=True)


def expected_ids(model: Model, found: Index, text: str) -> list[str]:
    places, vectors = vectors_of(model, found)
    scores = vectors @ model.embed([text])[0]
    order = [places[number][0] for number in np.argsort(-scores, kind="stable")]
    return list(dict.fromkeys(order))


def test_vectors_find_the_nearest_documents(built: Index, model: Model) -> None:
    assert len(built) == 30
    assert built.passages > 40
    for text in ("the cat sat", "word3 a dog", "mat mat mat"):
        hits = built.search(text, top=30, mode="vectors")
        assert [hit.id for hit in hits] == expected_ids(model, built, text)
        assert all(first.score >= second.score for first, second in pairwise(hits))
        text_of = {row["id"]: row["text"] for row in made_documents(30)}
        assert all(text_of[hit.id][hit.start : hit.end] == hit.passage for hit in hits)


def test_words_and_both(built: Index) -> None:
    best = built.search("word7", top=3, mode="bm25")
    assert [hit.id for hit in best] == ["d7"]
    assert best[0].passage[slice(*best[0].highlights[0])] == "word7"
    assert best[0].cosine is None
    both = built.search("word7", top=30)
    ranks = {mode: [hit.id for hit in built.search("word7", top=30, mode=mode)] for mode in ("vectors", "bm25")}
    fused = {
        name: sum(1 / (60 + 1 + own.index(name)) for own in ranks.values() if name in own) for name in ranks["vectors"]
    }
    assert {hit.id: pytest.approx(hit.score) for hit in both} == fused
    assert both[0].bm25 is not None
    assert len(built.search("word7", top=2)) == 2


def test_several_queries(built: Index) -> None:
    first, second = built.search(["word7", "word9"], top=1, mode="bm25")
    assert (first[0].id, second[0].id) == ("d7", "d9")
    assert built.search([], top=1) == []


@pytest.mark.parametrize(
    ("where", "test"),
    [
        (["year>=2020"], lambda row: row["year"] >= 2020),
        (["year<2005", "lang=zh"], lambda row: row["year"] < 2005 and row["lang"] == "zh"),
        ({"lang": "en"}, lambda row: row["lang"] == "en"),
        ({"good": True}, lambda row: row["good"]),
        ("score=2.5", lambda row: row["score"] == 2.5),
        (["note=n10"], lambda row: row["note"] == "n10"),
        (["note!=n10"], lambda row: row["note"] != "n10"),
        (["lang>=f"], lambda row: row["lang"] >= "f"),
    ],
)
def test_conditions(built: Index, where: Any, test: Callable[[dict[str, Any]], bool]) -> None:
    expected = {row["id"] for row in made_documents(30) if test(row)}
    for mode in ("vectors", "hybrid"):
        assert {hit.id for hit in built.search("the cat", top=30, where=where, mode=mode)} == expected
    assert {hit.id for hit in built.search("the cat sat on a mat dog ran", 30, where=where, mode="bm25")} == expected


def test_conditions_on_text_that_holds_numbers(tmp_path: Path, folder: Path) -> None:
    rows = [{"id": str(number), "text": "the cat", "n": value} for number, value in enumerate(["7", "10", " x", "1e1"])]
    found = index(rows, tmp_path / "index", model=str(folder), precision="fp32", progress=False)
    assert {hit.id for hit in found.search("cat", where=["n>=8"])} == {"1", "3"}
    assert {hit.id for hit in found.search("cat", where=["n=10"])} == {"1", "3"}
    assert {hit.id for hit in found.search("cat", where=["n!=7"])} == {"1", "2", "3"}


def test_bad_searches(built: Index) -> None:
    for where, message in (
        (["yaer=3"], "where is 'yaer=3', but the documents have no field 'yaer'; did you mean 'year'?"),
        (["year"], "where is 'year'; expected a condition such as year>=2020 or lang=en"),
    ):
        with pytest.raises(RequestError) as caught:
            built.search("cat", where=where)
        assert str(caught.value) == message
    with pytest.raises(ConfigError, match=r"^top is 0; expected at least 1$"):
        built.search("cat", top=0)
    with pytest.raises(ConfigError, match=r"^mode is 'bm52'; did you mean 'bm25'\?$"):
        built.search("cat", mode="bm52")  # type: ignore[call-overload]


def test_reranking(built: Index) -> None:
    hits = built.search("cat", top=3, rerank=lambda _, found: list(map(len, found)))
    longest = sorted(hit.score for hit in built.search("cat", 30, rerank=lambda _, found: list(map(len, found))))
    assert [hit.score for hit in hits] == longest[::-1][:3]


# -- changes -----------------------------------------------------------------------------------------------------------


def test_adding_and_deleting(built: Index, model: Model) -> None:
    more = made_documents(40)[30:]
    assert built.add(more, progress=False) == 10
    assert built.add(more, progress=False) == 0  # unchanged
    assert len(built) == 40
    assert built.delete(["d3", "d35"]) == 2
    assert [hit.id for hit in built.search("the cat sat", 40, mode="vectors")] == expected_ids(
        model, built, "the cat sat"
    )
    assert "d35" not in {hit.id for hit in open_index(built.path).search("word35", 40)}
    assert len(open_index(built.path)) == 38
    with pytest.raises(DataError, match=r"no document has the id 'd3' \(and 1 more\); nothing was deleted$"):
        built.delete(["d3", "d4", "d99"])
    assert built.add([row for row in made_documents(40) if row["id"] == "d3"], progress=False) == 1


def test_replacing(built: Index) -> None:
    changed = [{"id": "d1", "text": "a dog word39", "year": "unknown"}]
    with pytest.raises(
        DataError, match=r"the index has another document with the id 'd1'; replace it with replace=True"
    ):
        built.add(changed, progress=False)
    assert built.add(changed, replace=True, progress=False) == 1
    assert len(built) == 30
    assert [hit.passage for hit in built.search("word39", mode="bm25")] == ["a dog word39"]
    assert built.search("word39", mode="bm25")[0].fields == {"year": "unknown"}


def test_segments_are_merged(built: Index, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    built.delete([f"d{number}" for number in range(20)])  # most of the segment
    assert [entry["documents"] for entry in built.manifest["segments"]] == [10]
    for number in range(9):
        built.add([{"id": f"x{number}", "text": f"the mat word{number}", "year": "late"}], progress=False)
    assert len(built.manifest["segments"]) == 2
    assert sorted(path.name for path in (built.path / "segments").iterdir()) == sorted(
        entry["name"] for entry in built.manifest["segments"]
    )
    assert len(built) == 19
    assert {hit.id for hit in built.search("mat", 30, where=["year=late"])} == {f"x{number}" for number in range(9)}
    built.delete([hit.id for hit in built.search("the cat", 30, mode="vectors")])
    assert len(built) == 0
    assert built.search("the cat") == []
    with pytest.raises(DataError, match="the index has no documents"):
        built.export(built.path.parent / "v.parquet")


def test_readers_keep_their_version(built: Index) -> None:
    reader = open_index(built.path)
    before = [hit.id for hit in reader.search("the cat", 30)]
    built.delete([f"d{number}" for number in range(20)])  # the old segment is removed
    assert [hit.id for hit in reader.search("the cat", 30)] == before
    assert reader.refresh()
    assert not reader.refresh()
    assert len(reader) == 10


def test_a_large_segment_has_a_graph(
    tmp_path: Path, folder: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (segments, building, query):
        monkeypatch.setattr(module, "EXACT_BELOW", 200)
    found = index(
        made_documents(400),
        tmp_path / "index",
        model=str(folder),
        precision="fp32",
        chunk=16,
        overlap=0,
        progress=False,
    )
    assert (found.path / "segments" / "000001" / "graph.usearch").is_file()
    queries = [row["text"] for row in made_documents(20, seed=1)]
    near, exact = (found.search(queries, 10, mode="vectors", exact=exact) for exact in (False, True))
    shared = [len({hit.id for hit in one} & {hit.id for hit in two}) for one, two in zip(near, exact, strict=True)]
    assert sum(shared) >= 0.95 * 200
    some = {hit.id for hit in found.search("the cat", 100, mode="vectors", where=["lang=en"])}
    assert len(some) == 100
    assert all(int(name[1:]) % 2 == 0 for name in some)
    assert {hit.id for hit in found.search("the cat", 5, mode="vectors", where=["year=2007"])} == {"d7"}
    graph = found.path / "segments" / "000001" / "graph.usearch"
    damaged = bytearray(graph.read_bytes())
    damaged[len(damaged) // 2] ^= 255
    graph.write_bytes(damaged)
    with pytest.raises(DataError, match=r"graph.usearch: damaged or truncated \(wrong checksum\)"):
        open_index(found.path).search("the cat", mode="vectors")


def test_export(built: Index, model: Model) -> None:
    table, array = built.path.parent / "vectors.parquet", built.path.parent / "vectors.npy"
    assert built.export(table) == built.export(array) == built.passages
    frame = pd.read_parquet(table)
    np.testing.assert_array_equal(np.stack(frame["vector"].to_list()), np.load(array))
    np.testing.assert_allclose(np.load(array), vectors_of(model, built)[1], atol=1e-5)
    assert {"id", "text", "start", "end", "year", "lang", "good", "score", "note", "vector"} == set(frame.columns)
    with pytest.raises(ConfigError, match=r"expected a file that ends in .parquet or .npy$"):
        built.export(built.path.parent / "vectors.txt")


# -- interruptions -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "PART_DOCUMENTS", 4)


@pytest.mark.usefixtures("small_parts")
def test_a_killed_build_is_resumed(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = made_documents(18)
    index(rows, tmp_path / "whole", model=str(folder), precision="fp32", progress=False)
    embedded: list[int] = []
    embed = building.embed_part

    def dies(documents: Any, *more: Any) -> Any:
        if len(embedded) == 3:
            raise Killed
        embedded.append(len(documents))
        return embed(documents, *more)

    monkeypatch.setattr(building, "embed_part", dies)
    with pytest.raises(Killed):
        index(rows, tmp_path / "index", model=str(folder), precision="fp32", progress=False)
    assert not (tmp_path / "index").exists()
    embedded.clear()

    def counts(documents: Any, *more: Any) -> Any:
        embedded.append(len(documents))
        return embed(documents, *more)

    monkeypatch.setattr(building, "embed_part", counts)
    with pytest.raises(DataError, match=r"belongs to a job with other settings \(settings was .* choose another --out"):
        index(rows, tmp_path / "index", model=str(folder), precision="fp32", chunk=20, overlap=0, progress=False)
    found = index(rows, tmp_path / "index", model=str(folder), precision="fp32", progress=False)
    assert sum(embedded) == 6  # the rest
    assert contents(tmp_path / "index") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "whole"]
    index(rows, found.path, model=str(folder), precision="fp32", progress=False)  # the same command again
    assert sum(embedded) == 6


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("place", ["write_part", "write_segment", "replace_json", "remove_others"])
def test_a_killed_addition_is_resumed(
    tmp_path: Path, folder: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("whole", "index"):
        index(made_documents(10), tmp_path / name, model=str(folder), precision="fp32", progress=False)
    more = made_documents(20)[10:]
    open_index(tmp_path / "whole").add(more, progress=False)
    before = contents(tmp_path / "index")
    module = "index" if place == "replace_json" else "segments"
    calls: list[int] = []

    def dies(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        # The first call of remove_others is the cleanup before the work.
        if len(calls) == {"write_part": 2, "remove_others": 2}.get(place, 1):
            raise Killed
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        target = __import__(f"cloze.predict.search.{module}", fromlist=[place])
        original = getattr(target, place)
        patch.setattr(target, place, dies)
        with pytest.raises(Killed):
            open_index(tmp_path / "index").add(more, progress=False)
    if place != "remove_others":  # after the commit
        assert {name: before[name] for name in before} == {
            name: digest for name, digest in contents(tmp_path / "index").items() if name in before
        }
        assert len(open_index(tmp_path / "index")) == 10
    open_index(tmp_path / "index").add(more, progress=False)
    assert contents(tmp_path / "index") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "whole"]


def test_a_second_writer_is_refused(built: Index) -> None:
    complaints: list[str] = []

    def write() -> None:
        with pytest.raises(ClozeError) as caught:
            open_index(built.path).add(["x"], progress=False)
        complaints.append(str(caught.value))
        with pytest.raises(ClozeError) as caught:
            built.delete(["d1"])
        complaints.append(str(caught.value))

    with only_writer(built.path):
        other = threading.Thread(target=write)
        other.start()
        other.join()
    assert len(complaints) == 2
    assert all("another process is writing to index" in complaint for complaint in complaints)
    assert len(built) == 30


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_another_index_is_not_replaced(built: Index, folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"is an index of other documents, or built with other settings; add documents"
    ):
        index(["the cat"], built.path, model=str(folder), precision="fp32", progress=False)
    assert (
        len(index(["the cat", "a dog"], built.path, model=str(folder), precision="fp32", fresh=True, progress=False))
        == 2
    )


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    for fresh in (False, True):
        with pytest.raises(ConfigError, match=r"contains .thesis.txt., which does not belong to an index"):
            index(["the cat", "a dog"], tmp_path, model=str(folder), precision="fp32", fresh=fresh, progress=False)


def test_int8_by_default(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    index(made_documents(20), tmp_path / "index", model=str(folder), progress=False)
    found = open_index(tmp_path / "index")  # loads the same model in float32
    assert found.model.precision == "fp32"
    assert len(found.search("the cat", 20)) == 20


def test_a_changed_model_is_refused(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    found = index(["the cat"], tmp_path / "index", model=str(tmp_path / "model"), precision="fp32", progress=False)
    wider = model_folder(["mlm"], config=BertConfig(**{**vars(SMALL), "hidden_size": 32}))
    for changed, note in ((model_folder(["mlm", "nsp"]), ""), (wider, r" \(32 dimensions instead of 16\)")):
        shutil.rmtree(tmp_path / "model")
        saved(changed, tmp_path / "model")
        message = (
            rf"index: was built with {tmp_path}/model, but {tmp_path}/model differs from it{note}, so that its vec"
        )
        with pytest.raises(CheckpointError, match=message):
            open_index(found.path).search("the cat")
        with pytest.raises(CheckpointError, match="differs from it"):
            open_index(found.path).add([{"id": "2", "text": "a dog"}], progress=False)
    assert [hit.id for hit in open_index(found.path).search("cat", mode="bm25")] == ["1"]  # needs no model
    with pytest.raises(CheckpointError, match="but the given model differs from it"):
        open_index(found.path, model=load(tmp_path / "model")).search("the cat")
    assert open_index(found.path, model=str(folder)).search("the cat")[0].id == "1"


def test_damaged_indexes(built: Index, tmp_path: Path) -> None:
    def complaint(change: Callable[[Path], object]) -> str:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(built.path, tmp_path / "copy")
        change(tmp_path / "copy")
        with pytest.raises(ClozeError) as caught:
            open_index(tmp_path / "copy").search("the cat")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    names = sorted(path.name for path in (built.path / "segments" / "000001").iterdir())
    assert len(names) == 9
    for name in names:
        inside = f"segments/000001/{name}"

        def shorten(root: Path, inside: str = inside) -> None:
            (root / inside).write_bytes((root / inside).read_bytes()[:-1])

        assert f"{name}: damaged or truncated" in complaint(shorten)

        def remove(root: Path, inside: str = inside) -> None:
            (root / inside).unlink()

        def overwrite(root: Path, inside: str = inside) -> None:
            (root / inside).write_bytes(b"\xff" * (root / inside).stat().st_size)

        assert f"{name}: damaged or truncated (missing)" in complaint(remove)
        if name != "terms.bin":  # it has no header
            assert "damaged or truncated" in complaint(overwrite)
    assert "index.json: not valid JSON" in complaint(lambda root: (root / "index.json").write_text("{"))
    assert "index.json: format None, but this version reads 1; update cloze" in complaint(
        lambda root: (root / "index.json").write_text("{}")
    )

    def rewritten(**values: Any) -> Callable[[Path], object]:
        return lambda root: (root / "index.json").write_text(json.dumps(built.manifest | values))

    assert "is not a plain file name" in complaint(rewritten(segments=[{"name": "../../x", "files": {}}]))
    assert "damaged or truncated" in complaint(rewritten(segments=[3]))
    assert "damaged or truncated (no list of segments)" in complaint(rewritten(segments={}))
    assert "is not an index (it has no index.json); build one with" in complaint(
        lambda root: (root / "index.json").unlink()
    )
    with pytest.raises(DataError, match=r"nowhere: no such index; build one with cloze index FILES --out"):
        open_index(tmp_path / "nowhere")


def test_damage_is_not_copied(built: Index) -> None:
    path = built.path / "segments" / "000001" / "vectors.npy"
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    with pytest.raises(DataError, match=r"vectors.npy: damaged or truncated \(wrong checksum\)"):
        open_index(built.path).delete([f"d{number}" for number in range(20)])


def test_vectors_that_are_not_finite(tmp_path: Path) -> None:
    contents = model_folder(["mlm"])
    next(iter(contents.model.parameters())).data.fill_(float("nan"))
    with pytest.raises(DataError, match="the model gave no finite vector for this document; check its training"):
        index(["the cat"], tmp_path / "index", model=Model(contents), progress=False)
    assert not (tmp_path / "index").exists()


def test_a_text_of_another_language_warns(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index(["鱼鱼鱼", "鱼鱼"], tmp_path / "index", model=str(folder))
    assert "warning: " in (message := capsys.readouterr().err)
    assert "of the tokens are [UNK]" in message


def test_public_names(tmp_path: Path, folder: Path) -> None:
    found = cloze.index(["the cat"], tmp_path / "index", model=load(folder), precision="fp32", progress=False)
    assert isinstance(found, cloze.Index)
    assert repr(found) == f"Index({str(tmp_path / 'index')!r}, 1 documents, 1 passages)"
    assert isinstance(cloze.open_index(found.path).search("the cat")[0], cloze.Hit)
    with pytest.raises(
        ConfigError, match=r"^unknown setting 'chunks'; expected one of: text, id, split, chunk, overlap$"
    ):
        cloze.index(["the cat"], tmp_path / "index", chunks=3)
