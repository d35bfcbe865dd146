"""The documentation site: every public name is documented and has a page, and broken links are found.

``make docs`` builds the site; these tests need no MkDocs.
"""

import ast
import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import cloze
import cloze.sklearn
from check_site import problems
from cloze.cli import COMMANDS
from docs_site import (
    api_pages,
    command_page,
    command_pages,
    navigation,
    public_homes,
    resolve_link,
    rewrite_links,
    sklearn_names,
)

ROOT = Path(__file__).parent.parent
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example|Examples):$", re.MULTILINE)
PUBLIC = {
    **{f"cloze.{name}": getattr(cloze, name) for name in public_homes()},
    **{f"cloze.sklearn.{name}": getattr(cloze.sklearn, name) for name in sklearn_names()},
}


def public_methods(kind: type) -> dict[str, Any]:
    """Return the public methods of a class, without those inherited from other libraries."""
    bases = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == "cloze"]
    names = {name for base in bases for name in vars(base) if not name.startswith("_")}
    functions = {name: getattr(kind, name) for name in sorted(names) if callable(getattr(kind, name))}
    # scikit-learn adds generated methods to its estimators.
    return {
        name: one for name, one in functions.items() if inspect.unwrap(one).__code__.co_filename.startswith(str(ROOT))
    }


METHODS = {
    f"{name}.{method}": function
    for name, value in PUBLIC.items()
    if inspect.isclass(value) and not is_dataclass(value)  # settings: their fields are what a user passes
    for method, function in public_methods(value).items()
}


def sections(docstring: str) -> dict[str, str]:
    """Return the sections of a Google-style docstring by title."""
    parts = SECTION.split(inspect.cleandoc(docstring))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def entries(section: str) -> set[str]:
    """Return the names that an Args or Attributes section documents; one entry may document several."""
    groups = re.findall(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?:", section, re.MULTILINE)
    return {name.strip().lstrip("*") for group in groups for name in group.split(",")}


def parameters(function: Any) -> list[str]:
    """Return the parameters that a caller passes."""
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def field_docs(kind: type) -> set[str]:
    """Return the fields of a dataclass and its bases that have a string literal below them."""
    documented = set()
    for base in kind.__mro__[:-1]:
        body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for before, after in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(before, ast.AnnAssign)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                documented.add(ast.unparse(before.target))
    return documented


def missing_from(value: Any, docstring: str, *, example: bool) -> list[str]:
    """Return what is missing from the docstring of a public function or class."""
    found = sections(docstring)
    documented = entries(found.get("Args", "")) | entries(found.get("Attributes", ""))
    if is_dataclass(value):
        assert isinstance(value, type)
        documented |= field_docs(value)
        wanted = [one.name for one in fields(value) if one.init]
    elif inspect.isclass(value):
        own_init = "__init__" in vars(value)
        wanted = parameters(value) if own_init else []
        documented |= entries(sections(value.__init__.__doc__ or "").get("Args", "")) if own_init else set()
    else:
        wanted = parameters(value)
    missing = [f"Args: {name}" for name in wanted if name not in documented]
    if not inspect.isclass(value) and inspect.signature(value).return_annotation not in (None, "None"):
        missing += [] if "Returns" in found else ["Returns"]
    return missing + (["Example"] if example and not {"Example", "Examples"} & found.keys() else [])


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_is_documented(name: str) -> None:
    """The docstring documents every argument and the returned value, and has an example."""
    value = PUBLIC[name]
    assert missing_from(value, value.__doc__ or "", example=True) == []


@pytest.mark.parametrize("name", METHODS)
def test_public_method_documents_its_arguments(name: str) -> None:
    """A public method with several arguments documents them and the returned value; with one, a line suffices."""
    function = METHODS[name]
    docstring = inspect.getdoc(function)
    assert docstring, "no docstring"
    assert len(parameters(function)) < 2 or missing_from(function, docstring, example=False) == []


def test_check_of_docstrings_can_fail() -> None:
    """An undocumented argument, a missing return value and a missing example are reported."""

    def bare(one: int, two: int) -> int:
        """Add numbers.

        Args:
            one: The first.
        """
        return one + two

    assert missing_from(bare, bare.__doc__ or "", example=True) == ["Args: two", "Returns", "Example"]


def test_api_reference_has_every_public_name_once() -> None:
    """Each name that cloze and cloze.sklearn export is on exactly one API page."""
    listed = [name for page in api_pages().values() for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]
    assert sorted(listed) == sorted(PUBLIC)


def test_command_reference_has_every_command() -> None:
    """Each command has a page with its help, and a row in the index."""
    pages = command_pages()
    assert len({command_page(name) for name in COMMANDS} | {"index.md"}) == len(COMMANDS) + 1
    titles = {name: pages[f"commands/{command_page(name)}"].partition("\n")[0] for name in COMMANDS}
    assert titles == {name: f"# cloze {name}" for name in COMMANDS}
    overview = pages["commands/index.md"]
    assert [name for name in COMMANDS if f"[`cloze {name}`]({command_page(name)})" not in overview] == []
    assert "--pooling STR" in pages["commands/embed.md"]


@pytest.mark.parametrize(
    ("folder", "target", "expected"),
    [
        ("docs", "01-words.md#tokens", "01-words.md#tokens"),
        ("docs", "../CHANGELOG.md", "changelog.md"),
        ("docs/experiments", "../../CONTRIBUTING.md#style", "../contributing.md#style"),
        ("docs", "../src/cloze/files.py", "https://github.com/cloze-bert/cloze/blob/main/src/cloze/files.py"),
        (".", "docs/results.md", "results.md"),
        ("docs", "https://arxiv.org/abs/1810.04805", "https://arxiv.org/abs/1810.04805"),
        ("docs", "#here", "#here"),
    ],
)
def test_links_are_rewritten_for_the_site(folder: str, target: str, expected: str) -> None:
    """Pages of the site are linked relatively, other files of the repository by URL."""
    assert resolve_link(target, folder) == expected


def test_code_blocks_keep_their_text() -> None:
    """Only prose is rewritten."""
    text = "[a](../README.md)\n\n```text\n[a](../README.md)\n```\n"
    assert rewrite_links(text, "docs").endswith("```text\n[a](../README.md)\n```\n")


def test_navigation_leads_with_index_pages() -> None:
    """The index of a folder comes first, and Chinese pages appear if there are any."""
    pages = ["commands/embed.md", "commands/index.md", "01-words.md"]
    reference = next(section["Reference"] for section in navigation(pages) if "Reference" in section)
    assert reference[0] == {"Commands": ["commands/index.md", "commands/embed.md"]}
    assert navigation([*pages, "zh/quickstart.md"])[-1] == {"中文": ["zh/quickstart.md"]}


def test_site_asks_no_host() -> None:
    """Fonts are local, and no repository is configured, since the theme would then query GitHub for its star count."""
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "\n  font: false\n" in settings
    assert "\nrepo_url" not in settings


def test_site_check_finds_broken_links_and_remote_resources(tmp_path: Path) -> None:
    """A missing file, a missing anchor, a remote script and a remote font are reported; remote links are fine."""
    (tmp_path / "index.html").write_text(
        '<a href="other.html#here">1</a><a href="other.html#gone">2</a><a href="gone.html">3</a>'
        '<a href="https://example.org">4</a><script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "other.html").write_text('<h1 id="here">x</h1>')
    (tmp_path / "style.css").write_text(
        "@font-face {src: url(https://example.org/font.woff2)} a {background: url(x.png)}"
    )
    assert problems(tmp_path) == [
        "index.html: loads https://example.org/x.js from the network",
        "index.html: other.html#gone leads to no anchor",
        "index.html: gone.html leads to no file",
        "style.css: loads https://example.org/font.woff2 from the network",
    ]
