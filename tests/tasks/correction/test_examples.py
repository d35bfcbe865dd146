"""Confusion lists in common formats."""

from pathlib import Path

import pytest

from cloze.errors import DataError
from cloze.tasks.correction.examples import read_confusions


def read(path: Path, content: str) -> dict[str, list[str]]:
    path.write_text(content, encoding="utf-8")
    return read_confusions(path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("平\t苹 评", {"平": ["苹", "评"]}),
        ("平:苹评瓶", {"平": ["苹", "评", "瓶"]}),
        ("平：苹、评", {"平": ["苹", "评"]}),
        ("平 苹 评", {"平": ["苹", "评"]}),
        ("平,苹评", {"平": ["苹", "评"]}),
        ("平\t苹评\t瓶屏", {"平": ["苹", "评", "瓶", "屏"]}),
        ("平: ['苹', '评']", {"平": ["苹", "评"]}),
        ("交通先行\t交通限行", {"先": ["限"]}),
        ("交通先行 交通限行 12", {"先": ["限"]}),
        ("苹过:苹果", {"过": ["果"]}),
        ("平\t平 苹", {"平": ["苹"]}),
        ("Cat\tmat hat", {"cat": ["mat", "hat"]}),
        ("their there", {"their": ["there"]}),
        ("平\t苹\n# note\n\n平\t评", {"平": ["苹", "评"]}),
    ],
)
def test_forms(line: str, expected: dict[str, list[str]], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read(tmp_path / "list.txt", line + "\n") == expected
    assert caplog.messages == []


def test_lines_that_cannot_be_used_are_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = ["评\t瓶 apple", "孤", "一个钟头\t一小时", "同\t同", '{"text": "a"}', "平\tapple", "3:4", "b:"]
    assert read(tmp_path / "list.txt", "平\t苹\n" + "\n".join(bad) + "\n") == {"平": ["苹"], "评": ["瓶"]}
    (message,) = caplog.messages
    assert message.startswith(
        f"{tmp_path}/list.txt: 8 of 9 lines cannot be used in full: line 2 ('评\\t瓶 apple'), line 3 ('孤'), line 4 ("
    )
    assert message.endswith(
        ", ...; expected a character or word, a tab, a colon or spaces, and what it is confused with"
    )


def test_a_file_without_any(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"list.txt: none of its 1 lines names a confusion, such as line 1 \('孤'\); exp"
    ):
        read(tmp_path / "list.txt", "孤\n")
