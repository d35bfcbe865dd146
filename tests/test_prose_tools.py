"""``scripts/word_lint.py`` and ``scripts/sample_passages.py``."""

# lint: allow file

from pathlib import Path

import pytest

import passages
import sample_passages
import word_lint

PAGE = """Usage: cloze example [OPTIONS] TEXT

Do something with texts.

╭─ Parameters ─────────────────────────────────────────────────────╮
│ *  --model STR   The model folder. [required]                    │
│    --epochs INT  Passes over the rows; by default 3, and up      │
│                  to 20 with few rows.                            │
╰──────────────────────────────────────────────────────────────────╯
"""
MODULE = '''"""Example module."""


def check(rows: int) -> None:
    """Reject an empty file."""
    # an empty file would divide by zero
    # when the mean is taken
    if rows == 0:  # as after a crash
        raise ValueError(f"{rows} rows; at least one was expected")
    print("checked all rows")
'''


def phrases(source: str, path: str = "module.py") -> list[tuple[int, str]]:
    return [(finding.line, finding.phrase) for finding in word_lint.lint(path, source)]


@pytest.mark.parametrize(
    "text",
    [
        "how many were is told",
        "it tells which rows are bad",
        "what a kill leaves is gone on with",
        "goes on where it stopped",
        "is not to be had here",
        "Whom a token may look at",
        "So many more of each row",
        "ever after, it is cached",
        "a share as if left alone",
        "In which numbers it computes",
        "Parts in which a process works off its share",
        "a text is to find itself",
        "each has its own way",
        "Part in peace with the others",
        "What can be said about a training",
        "Sequences an update",
        "this run was started otherwise",
        "whoever leaves the choice to us",
        "nothing but the weights",
        "what is kept in memory",
        "the same to the bit",
        "a class of 0.5; left out, 0.9 is used",
    ],
)
def test_phrases_of_the_style_guide_are_found(text: str) -> None:
    assert phrases(f'"""{text}."""\n')
    assert phrases(f"x = 1  # {text}\n")
    assert phrases(f"x = f'{{y}}: {text}'\n")
    assert phrases(f"{text}\n", "page.md")


@pytest.mark.parametrize(
    "text",
    [
        "Return the peak resident memory in bytes.",
        "Resumes after being killed, on another machine as well.",
        "Tokens per second, once a minute",
        "The whole text is encoded, and the best of its windows decides.",
        "The answer begins at the first of the two tokens.",
    ],
)
def test_plain_sentences_pass(text: str) -> None:
    assert phrases(f'"""{text}"""\n') == []
    assert phrases(f"{text}\n", "page.md") == []


def test_phrase_across_lines_is_found_where_it_begins() -> None:
    assert phrases('"""One.\n\nIt goes\non where it stopped.\n"""\n') == [(3, "goes on where")]
    assert phrases("# first line, and nothing\n# but the second\nx = 1\n") == [(1, "nothing but")]
    assert phrases("One line.\nIt goes on\nwith another.\n", "page.md") == [(2, "goes on with")]


def test_names_and_code_are_not_prose() -> None:
    assert phrases("told = found['told']\n") == []
    assert phrases("Run `cloze told` or:\n\n```sh\ncloze told\n```\n", "page.md") == []
    assert phrases("告诉 told\n", "docs/zh/page.md") == []


def test_allowed_phrases_pass() -> None:
    assert phrases('TEXTS = [  # lint: allow\n    "a text that was told",\n]\n') == []
    assert phrases('x = "told and told"\n# lint: allow file\n') == []
    assert phrases('x = "a text that was told"\n') == [(1, "told")]
    assert phrases("<!-- lint: allow -->\nIt was told.\n\nIt was told.\n", "page.md") == [(4, "told")]


def test_texts_of_pages_are_checked() -> None:
    assert phrases("let told = 1; // what was told to us\n", "page.js") == [(1, "told"), (1, "what was told")]
    assert phrases("<p>\nAs told.</p>", "page.html") == [(2, "told")]


def test_finding_names_place_and_wording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "module.py").write_text("# nothing but zeros\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("A clean page.\n", encoding="utf-8")
    findings = word_lint.check(word_lint.files(root=tmp_path), tmp_path)
    assert [str(finding) for finding in findings] == ["src/module.py:1: 'nothing but': write 'only'"]


def test_exit_code_is_1_for_findings_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert word_lint.main([str(passages.ROOT / "scripts" / "word_lint.py")]) == 0
    finding = word_lint.Finding("src/module.py", 3, "told", "'reported'")
    monkeypatch.setattr(word_lint, "check", lambda _: [finding])
    assert word_lint.main([]) == 1
    assert capsys.readouterr().out == f"{finding}\n"


def test_passages_of_a_module() -> None:
    found = {(one.source, one.line): (one.text, one.context) for one in passages.python_passages("module.py", MODULE)}
    assert found == {
        ("docstring", 1): ("Example module.", ""),
        ("docstring", 5): ("Reject an empty file.", "def check(rows: int) -> None:"),
        ("comment", 6): (
            "an empty file would divide by zero\nwhen the mean is taken",
            "    if rows == 0:  # as after a crash",
        ),
        ("comment", 8): ("as after a crash", "    if rows == 0:"),
        ("message", 9): ("{rows} rows; at least one was expected", ""),
        ("message", 10): ("checked all rows", ""),
    }


def test_passages_of_help_and_documents() -> None:
    assert [(one.line, one.text) for one in passages.help_passages("example.txt", PAGE)] == [
        (3, "Do something with texts."),
        (6, "*  --model STR   The model folder. [required]"),
        (7, "--epochs INT  Passes over the rows; by default 3, and up to 20 with few rows."),
    ]
    document = (
        "# Title\n\nA paragraph of\ntwo lines.\n\n```sh\ncloze\n```\n\n"
        "- an item\n- another\n\n| a | b |\n|---|---|\n| c | d |\n"
    )
    assert [(one.line, one.text) for one in passages.markdown_passages("page.md", document)] == [
        (3, "A paragraph of\ntwo lines."),
        (10, "- an item"),
        (11, "- another"),
        (13, "| a | b |"),
        (15, "| c | d |"),
    ]


@pytest.fixture(scope="module")
def english() -> list[passages.Passage]:
    """All English passages of the project."""
    return passages.passages()


def test_sample_is_seeded_and_even(english: list[passages.Passage]) -> None:
    sample = sample_passages.draw(english, 60, seed=1)
    assert sample == sample_passages.draw(english, 60, seed=1) != sample_passages.draw(english, 60, seed=2)
    assert [sum(one.source == source for one in sample) for source in passages.SOURCES] == [12] * 5
    assert {one.source for one in sample_passages.draw(english, 10, 1, ["comment"])} == {"comment"}


def test_sample_shows_place_text_and_code() -> None:
    comment = next(one for one in passages.python_passages("module.py", MODULE) if one.source == "comment")
    assert sample_passages.show(7, comment) == (
        "7. module.py:6 (comment)\n    an empty file would divide by zero\n    when the mean is taken\n"
        "    | if rows == 0:  # as after a crash"
    )


def test_chinese_pages_are_drawn_apart(english: list[passages.Passage]) -> None:
    chinese = passages.passages(chinese=True)
    assert "README.zh.md" in {one.path for one in chinese}
    assert not {one.path for one in chinese} & {one.path for one in english}
