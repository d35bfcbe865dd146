"""Which differences and ranks are claimed, and the sentences that say so, for made-up scores."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from cloze.comparison.report import _evidence, _score
from cloze.comparison.results import CLAIMS, conclusions, findings, title_of
from cloze.comparison.settings import VARIATIONS, ComparedRow, CompareSettings
from cloze.tasks.comparisons import Resamples

WIDTH = 0.01  # deviation of the scores over documents


def runs(*scores: float, width: float = WIDTH, seed: int = 0) -> list[Resamples]:
    noise = np.random.default_rng(seed).normal(0, width, 1000)
    return [Resamples("accuracy", 200, score, score + noise * (1 + number / 10)) for number, score in enumerate(scores)]


def row(name: str, group: Any = "main") -> ComparedRow:
    return ComparedRow(name, "bert", {}, 2, group)


def found(scores: Mapping[str, Sequence[Resamples]], groups: Mapping[str, str] | None = None) -> dict[str, Any]:
    rows = [row(name, (groups or {}).get(name, "main")) for name in scores]
    return findings(rows, {name: {"blanks": cells} for name, cells in scores.items()})


def facts_of(results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] = (), **others: Any) -> dict[str, Any]:
    return {
        "finished": True,
        "yardsticks": {"blanks": "accuracy"},
        "rows": list(rows),
        "references": {},
        "test": {"documents": 100},
        "text": {"tokens": 1000},
        **results,
        **others,
    }


def scored(name: str, *seeds: float, interval: tuple[float, float] = (0.4, 0.6), **others: Any) -> dict[str, Any]:
    score = {"mean": sum(seeds) / len(seeds), "interval": list(interval), "seeds": list(seeds)}
    empty = {"diverged": 0, "refused": {}, "settings": {}, "runs": [], "group": "main"}
    return {"name": name, "scores": {"blanks": score}, **empty, **others}


def test_rows_that_differ_beyond_noise_are_ranked() -> None:
    results = found({"bert": runs(0.60, 0.601), "gpt": runs(0.40, 0.401, seed=1), "elmo": runs(0.403, 0.404, seed=2)})
    decided = {(one["first"], one["second"]): one["decided"] for one in results["differences"]}
    assert decided == {("bert", "gpt"): True, ("bert", "elmo"): True, ("gpt", "elmo"): False}
    assert [(rank["row"], rank["best"], rank["worst"]) for rank in results["ranks"]] == [
        ("bert", 1, 1),
        ("gpt", 2, 3),
        ("elmo", 2, 3),
    ]
    said = conclusions(facts_of(results))
    assert said["supported"] == [
        f"blanks filled: bert is above gpt by 20.0 points ({_ends(results, 0)}); "
        f"bert is above elmo by 19.7 points ({_ends(results, 1)})."
    ]
    assert said["undecided"][0].startswith("blanks filled: gpt against elmo: -0.3 points (")
    assert any("3 differences were tested at 95 %" in line and "about 0.2 of them" in line for line in said["limits"])


def _ends(results: Mapping[str, Any], number: int) -> str:
    one = results["differences"][number]
    return f"{100 * one['low']:.1f} to {100 * one['high']:.1f}"


def test_the_same_means_with_wider_intervals_are_not_decided() -> None:
    results = found({"bert": runs(0.60, 0.601, width=0.2), "gpt": runs(0.40, 0.401, width=0.2, seed=1)})
    assert [one["decided"] for one in results["differences"]] == [False]
    assert {(rank["best"], rank["worst"]) for rank in results["ranks"]} == {(1, 2)}
    said = conclusions(facts_of(results))
    assert said["supported"] == []
    assert "bert against gpt: +20.0 points" in said["undecided"][0]


def test_seeds_that_differ_widen_the_interval() -> None:
    close = found({"bert": runs(0.50, 0.501), "gpt": runs(0.45, 0.451, seed=1)})
    apart = found({"bert": runs(0.45, 0.55), "gpt": runs(0.45, 0.45, seed=1)})
    assert [one["decided"] for one in (*close["differences"], *apart["differences"])] == [True, False]


def test_a_row_with_one_seed_is_neither_ranked_nor_claimed() -> None:
    results = found({"bert": runs(0.60, 0.601), "gpt": runs(0.40)})
    (difference,) = results["differences"]
    assert difference["seeds"] == 1
    assert difference["low"] > 0  # over documents alone, it is beyond noise
    assert not difference["decided"]
    assert results["ranks"] == []
    said = conclusions(facts_of(results, [scored("bert", 0.6, 0.6), scored("gpt", 0.4)]))
    assert said["supported"] == said["undecided"] == []
    assert (
        "One pre-training seed, not ranked: gpt. Their intervals do not contain the variance between seeds"
        in " ".join(said["limits"])
    )
    assert "one seed, not ranked" in _score(scored("gpt", 0.4)["scores"]["blanks"], None)


def test_variants_are_compared_with_bert_only() -> None:
    scores = {"bert": runs(0.5, 0.501), "gpt": runs(0.4, 0.4, seed=1), "bert+nsp": runs(0.6, 0.6, seed=2)}
    results = found(scores, {"bert+nsp": "variant"})
    pairs = [(one["first"], one["second"], one["group"]) for one in results["differences"]]
    assert pairs == [("bert", "gpt", "main"), ("bert+nsp", "bert", "variant")]
    assert {rank["row"] for rank in results["ranks"]} == {"bert", "gpt"}
    said = conclusions(facts_of(results))
    assert said["supported"][1].startswith("blanks filled (variants of BERT): bert+nsp is above bert by 9.9 points")
    page = _evidence(facts_of(results, [scored(name, 0.5, 0.5) for name in scores]))
    assert "next sentences help" in page
    assert "<b>holds</b>: blanks filled (+9.9)" in page
    assert "both sides help" in page


def test_a_reversed_finding_is_called_reversed() -> None:
    results = found({"bert": runs(0.4, 0.401), "gpt": runs(0.5, 0.501, seed=1)})
    page = _evidence(facts_of(results, [scored("bert", 0.4, 0.4), scored("gpt", 0.5, 0.5)]))
    assert "<b>reversed</b>: blanks filled (-10.0)" in page


def test_limits() -> None:
    results = found({"bert": runs(0.5, 0.501)})
    bert = scored("bert", 0.5, 0.5, interval=(0.1, 0.9), refused={"x frozen": "no such head"}, diverged=1)
    run = {"tokens": 1500}
    static = scored("masks=static", 0.5, settings={"static": 1}, runs=[run], group="variant")
    facts = facts_of(
        results,
        [bert, static],
        references={"blanks": {"name": "word frequencies", "mean": 0.2, "interval": [0.1, 0.3]}},
        test={"documents": 12},
        finished=False,
    )
    limits = " ".join(conclusions(facts)["limits"])
    for words in (
        "The comparison is not finished",
        "blanks filled: not reliably above word frequencies (20.0): bert.",
        "Diverged in at least one seed, which has no scores: bert.",
        "bert has no score for x, frozen features: no such head.",
        "The blanks come from 12 documents",
        "masks=static: the text was read 1.50 times",
        "Losses of different objectives are not compared anywhere.",
    ):
        assert words in limits
    finished = conclusions(facts | {"finished": True, "test": {"documents": 100}, "rows": [scored("bert", 0.5, 0.5)]})
    assert "not finished" not in " ".join(finished["limits"])
    assert "come from" not in " ".join(finished["limits"])


def test_claims_name_existing_rows() -> None:
    names = {row.name for row in CompareSettings(backbones="bert,gpt,bert+nsp,bert+sop", vary="all", steps=1000).rows()}
    named = {name for claim in CLAIMS for name in (claim.above, claim.below)}
    assert named - {"elmo"} <= names
    assert {name.partition("=")[0] for name in names if "=" in name} == set(VARIATIONS)


@pytest.mark.parametrize(
    ("yardstick", "title"),
    [("pairs", "minimal pairs"), ("sst-2 frozen", "sst-2, frozen features"), ("my task full", "my task, fine-tuned")],
)
def test_titles(yardstick: str, title: str) -> None:
    assert title_of(yardstick) == title
