"""``cloze.open_index``: search an index, and add and delete documents.

A change becomes visible when the manifest is replaced. One process writes at a time; readers keep their version until
they call ``refresh``. Small segments, and those with many deleted documents, are merged after a change.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from cloze.checkpoint.pooling_files import QUERY
from cloze.errors import CheckpointError, ConfigError, DataError
from cloze.files import flush, replace_json
from cloze.locks import only_writer
from cloze.options import IndexSettings, SearchMode
from cloze.predict.loading import load
from cloze.predict.model import Model
from cloze.predict.search import building, passages, query, segments
from cloze.predict.search.query import Hit, Search
from cloze.predict.search.segments import MANIFEST, SEGMENTS, Floats
from cloze.progress import Progress, choose_progress
from cloze.resumable import discard_parts

Where = Sequence[str] | Mapping[str, object] | None
_ATTEMPTS = 5  # a reader may meet a writer that is removing a merged segment


def open_index(path: str | os.PathLike[str], *, model: str | Model | None = None) -> "Index":
    """Open an index for searching, adding and deleting.

    Args:
        path: The folder of the index.
        model: The model it was built with, if it has moved.

    Returns:
        The index. Its files are mapped into memory when they are needed.

    Raises:
        DataError: There is no index in this place, or it is damaged.

    Example:
        >>> index = cloze.open_index("boats")
        >>> len(index)
        2
    """
    return Index(Path(path), model=model)


class Index:
    """An index of documents on disk; see ``cloze.index`` and ``cloze.open_index``.

    Args:
        path: The folder of the index.
        model: The model it was built with, if it has moved or is already loaded.

    Example:
        >>> index = cloze.open_index("boats")
        >>> for hit in index.search("sailing", top=3):
        ...     print(hit.score, hit.id, hit.passage)
        0.8... 1 a ship at sea
    """

    def __init__(self, path: Path, *, model: str | Model | None = None) -> None:
        self.path, self._given = path, model
        self._model: Model | None = None
        self._stamp: tuple[int, ...] = ()
        self.refresh()

    def __len__(self) -> int:
        """Return the number of documents."""
        return sum(len(segment.documents) - segment.deleted for segment in self._segments)

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {len(self):,} documents, {self.passages:,} passages)"

    @property
    def passages(self) -> int:
        """The number of passages of all documents."""
        masks = [segment.live_passages() for segment in self._segments]
        pairs = zip(self._segments, masks, strict=True)
        return sum(len(segment.passages) if mask is None else int(mask.sum()) for segment, mask in pairs)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields of the documents, for conditions."""
        return tuple(self.manifest["kinds"])

    @property
    def model_name(self) -> str:
        """The name or folder of the model that the index was built with."""
        return str(self.manifest["model"]["source"])

    @property
    def model(self) -> Model:
        """The model of the vectors, loaded on first use.

        Raises:
            CheckpointError: The model is not the one that the index was built with.
        """
        if self._model is None:
            given = self._given if self._given is not None else self.model_name
            loaded = given if isinstance(given, Model) else load(given)
            self.check_model(loaded, "the given model" if isinstance(given, Model) else given)
            self._model = loaded
        return self._model

    def check_model(self, model: Model, name: str) -> None:
        """Refuse a model other than the one that the index was built with.

        Args:
            model: The model.
            name: Its name, for the message of the ``CheckpointError``.

        Example:
            >>> cloze.open_index("boats").check_model(cloze.load("all-MiniLM-L6-v2"), "MiniLM")
        """
        built = self.manifest["model"]
        if model.fingerprint == built["fingerprint"]:
            return
        width = model.embed_encoded([]).shape[1]
        sizes = f" ({width} dimensions instead of {built['width']})" if width != built["width"] else ""
        raise CheckpointError(
            f"{self.path}: was built with {built['source']}, but {name} differs from it{sizes}, so that its vectors "
            "cannot be compared; use the original model, or build the index again with --fresh"
        )

    def refresh(self) -> bool:
        """Use the current version of the index, if another process has changed it; return whether it has.

        Example:
            >>> cloze.open_index("boats").refresh()
            False
        """
        for attempt in range(_ATTEMPTS):
            try:
                stamp = building.stamp(self.path / MANIFEST)
                if stamp and stamp == self._stamp:
                    return False
                manifest = segments.read_manifest(self.path)
                self._segments = segments.open_segments(self.path, manifest)
            except FileNotFoundError as error:
                if attempt == _ATTEMPTS - 1:
                    raise segments.damaged(Path(error.filename or self.path), "missing") from error
            else:
                self.manifest, self._stamp = manifest, stamp
                return True
        raise AssertionError("the last attempt returns or raises")

    # -- searching ---------------------------------------------------------------------------------------------------

    @overload
    def search(
        self,
        queries: str,
        top: int = ...,
        *,
        where: Where = ...,
        mode: SearchMode = ...,
        exact: bool = ...,
        rerank: Any = ...,
    ) -> list[Hit]: ...

    @overload
    def search(
        self,
        queries: list[str] | tuple[str, ...],
        top: int = ...,
        *,
        where: Where = ...,
        mode: SearchMode = ...,
        exact: bool = ...,
        rerank: Any = ...,
    ) -> list[list[Hit]]: ...

    def search(
        self,
        queries: str | list[str] | tuple[str, ...],
        top: int = 10,
        *,
        where: Where = None,
        mode: SearchMode = "hybrid",
        exact: bool = False,
        rerank: Any = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Find the documents that match a query best.

        Args:
            queries: A query, or several.
            top: Number of documents per query.
            where: Conditions on fields: ``["year>=2020", "lang=en"]`` or ``{"lang": "en"}``.
            mode: vectors (meaning), bm25 (words), or hybrid (both, by reciprocal ranks).
            exact: Compare with every vector, also in large segments.
            rerank: A model, or its name or folder, that scores the best passages again, such as a cross-encoder.

        Returns:
            The documents with their best passages, best first; for several queries, one list each.

        Raises:
            RequestError: A condition names no field.

        Example:
            >>> cloze.open_index("boats").search("sailing", top=1)[0].passage
            'a ship at sea'
        """
        single = isinstance(queries, str)
        texts = [queries] if isinstance(queries, str) else list(queries)
        vectors = None if mode == "bm25" else self.embed_queries(texts)
        found = self.search_vectors(texts, vectors, top, where=where, mode=mode, exact=exact, rerank=rerank)
        return found[0] if single else found

    def embed_queries(self, texts: Sequence[str]) -> Floats:
        """Return the vectors of queries, scaled to unit length.

        Args:
            texts: The queries.

        Returns:
            One vector per query, (N, D).

        Example:
            >>> cloze.open_index("boats").embed_queries(["sailing"]).shape
            (1, 384)
        """
        return building.unit_length(self.model.embed(list(texts), prompt=QUERY))

    def search_vectors(
        self,
        texts: Sequence[str],
        vectors: Floats | None,
        top: int = 10,
        *,
        where: Where = None,
        mode: SearchMode = "hybrid",
        exact: bool = False,
        rerank: Any = None,
    ) -> list[list[Hit]]:
        """Search with vectors that were computed elsewhere; see ``search``.

        Args:
            texts: The queries.
            vectors: Their vectors, scaled to unit length, (N, D); None for bm25.
            top: Number of documents per query.
            where: Conditions on fields.
            mode: vectors, bm25 or hybrid.
            exact: Compare with every vector.
            rerank: A model that scores the best passages again.

        Returns:
            The documents of each query.

        Example:
            >>> index = cloze.open_index("boats")
            >>> hits = index.search_vectors(["sailing"], index.embed_queries(["sailing"]), top=1)[0]
        """
        query.check_search(top, mode)
        conditions = query.parse_conditions(where, self.fields)
        current = self._segments  # another thread may refresh the index meanwhile
        masks = [query.passages_that_meet(segment, conditions) for segment in current]
        scorer = building.scorer(load(rerank) if isinstance(rerank, str | os.PathLike) else rerank)
        one = Search(current, masks, top, mode, exact, scorer)
        rows = [None] * len(texts) if vectors is None else list(vectors)
        return [one.run(text, vector) for text, vector in zip(texts, rows, strict=True)]

    # -- changing ----------------------------------------------------------------------------------------------------

    def add(
        self,
        documents: Any,
        *,
        replace: bool = False,
        fresh: bool = False,
        progress: Progress | bool | None = None,
        **more: Any,
    ) -> int:
        """Add documents. Those that the index already has unchanged are skipped, so that a repeated call is harmless.

        Args:
            documents: As for ``cloze.index``.
            replace: Replace documents whose id is in the index; by default, a changed document is refused.
            fresh: Discard the parts of an interrupted ``add``.
            progress: A listener for progress, True for a bar, False for nothing.
            **more: ``text``, ``id`` or ``split``, if they differ from those of the index.

        Returns:
            The number of documents that were added or replaced.

        Raises:
            DataError: An id is in the index with another text, or a document is malformed.

        Example:
            >>> cloze.open_index("boats").add([{"id": "harbour", "text": "a harbour at night"}])
            1
        """
        with only_writer(self.path):
            self._begin()
            settings = building.with_settings(IndexSettings(**self.manifest["settings"]), more)
            sources, listener = passages.find_sources(documents, settings), choose_progress(progress)
            survey = passages.survey(sources, settings, segments.known_documents(self._segments), replace=replace)
            if not survey.count:
                discard_parts(self.path, "--out")
                return 0
            model = self.model
            building.warn_unknown(model, survey, listener)
            width = int(self.manifest["model"]["width"])

            def join(paths: list[Path], _: Path) -> None:
                folder = self.path / SEGMENTS / f"{self._next:06}"
                folder.mkdir()
                entry = building.write_parts(folder, paths, width)
                entries = segments.delete_documents(self._segments, survey.replaced, self._next)
                kinds = dict(self.manifest["kinds"])
                for field, kind in survey.kinds.items():
                    kinds[field] = passages.join_kinds(kinds.get(field), kind)
                self._commit([*entries, entry], kinds)

            identity = building.identity("add", sources, settings, model) | {"skipped": sorted(survey.skipped)}
            building.run_job(self.path, sources, settings, survey, model, identity, join, listener, fresh=fresh)
            self._merge()
        return survey.count

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents.

        Args:
            ids: Their ids.

        Returns:
            The number of deleted documents.

        Raises:
            DataError: A document is not in the index.

        Example:
            >>> cloze.open_index("boats").delete(["1"])
            1
        """
        if isinstance(ids, str):
            ids = [ids]
        with only_writer(self.path):
            self._begin()
            known = segments.known_documents(self._segments)
            missing = [name for name in map(str, ids) if name not in known]
            if missing:
                more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
                raise DataError(f"{self.path}: no document has the id {missing[0][:60]!r}{more}; nothing was deleted")
            gone = {str(name): known[str(name)] for name in ids}
            self._commit(segments.delete_documents(self._segments, gone, self._next), self.manifest["kinds"])
            self._merge()
        return len(gone)

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write the vectors of all passages: as Parquet with ids, offsets and texts, or as a NumPy array.

        Args:
            path: A file that ends in .parquet or .npy.

        Returns:
            The number of vectors.

        Example:
            >>> cloze.open_index("boats").export("boats.parquet")
            2
        """
        target = Path(path)
        if target.suffix not in (".parquet", ".npy"):
            raise ConfigError(f"{target}: expected a file that ends in .parquet or .npy")
        building.write_vectors(
            target, segments.chained(self._segments, segments.documents_schema(self.manifest["kinds"]))
        )
        return self.passages

    @property
    def _next(self) -> int:
        """The number of the next version."""
        return int(self.manifest["generation"]) + 1

    def _begin(self) -> None:
        """Start from the newest version, and remove what a killed writer has left."""
        self.refresh()
        segments.remove_others(self.path, self.manifest)

    def _commit(self, entries: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> None:
        """Make a new version visible, then remove files that only the previous one used."""
        flush(self.path / SEGMENTS)
        changed = {"generation": self._next, "segments": list(entries), "kinds": dict(kinds)}
        replace_json(self.path / MANIFEST, self.manifest | changed)
        flush(self.path)
        self.refresh()
        segments.remove_others(self.path, self.manifest)

    def _merge(self) -> None:
        """Merge small segments if there are many, and segments with many deleted documents."""
        chosen = segments.to_merge(self._segments)
        if chosen:
            schema = segments.documents_schema(self.manifest["kinds"])
            folder = self.path / SEGMENTS / f"{self._next:06}"
            merged = segments.merge(chosen, schema, folder, int(self.manifest["model"]["width"]))
            entries = [segment.entry for segment in self._segments if segment not in chosen]
            self._commit([*entries, *merged], self.manifest["kinds"])
