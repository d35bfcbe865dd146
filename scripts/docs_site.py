"""MkDocs hook: navigation, generated reference pages, and links that leave ``docs/``.

``make docs`` runs MkDocs, which calls the ``on_...`` functions below. The command reference comes from the stored help
pages and the API reference from the names that ``cloze`` and ``cloze.sklearn`` export, so neither can go stale.
"""

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "cloze"
HELP_PAGES = SOURCES / "cli" / "help"
REPOSITORY = "https://github.com/cloze-bert/cloze/blob/main"

# Documents in the root of the repository that become pages of the site.
ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

# The API page of each public name, by the module that defines it; the first match wins.
API_PAGES = {
    "predict": ("cloze.predict", "cloze.inspect", "cloze.options"),
    "training": ("cloze.train", "cloze.tasks", "cloze.comparison"),
    "text and corpus": ("cloze.corpus",),
    "checkpoints and errors": ("cloze.checkpoint", "cloze.errors"),
}


def public_homes() -> dict[str, str]:
    """Return each public name of ``cloze`` with the module that defines it, without importing the package."""
    tree = ast.parse((SOURCES / "__init__.py").read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["_HOMES"]:
            homes: dict[str, str] = ast.literal_eval(node.value)
            return homes
    raise ValueError("src/cloze/__init__.py: no assignment to _HOMES")


def sklearn_names() -> list[str]:
    """Return the public classes of ``cloze.sklearn``, in source order."""
    tree = ast.parse((SOURCES / "sklearn.py").read_text("utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def api_pages() -> dict[str, str]:
    """Return the Markdown of each API page by its path; together the pages list every public name once."""
    names: dict[str, list[str]] = {page: [] for page in API_PAGES}
    for name, home in public_homes().items():
        page = next((page for page, prefixes in API_PAGES.items() if home.startswith(prefixes)), None)
        if page is None:
            raise ValueError(f"{name} ({home}) has no API page; add its package to API_PAGES in scripts/docs_site.py")
        names[page].append(f"cloze.{name}")
    names["scikit-learn"] = [f"cloze.sklearn.{name}" for name in sklearn_names()]
    pages = {f"api/{page.replace(' ', '-')}.md": api_page(page, listed) for page, listed in names.items()}
    rows = [f"| [`{name}`]({page.replace(' ', '-')}.md#{name}) | {page} |" for page in names for name in names[page]]
    head = "# API reference\n\nEvery public name, from the docstrings. [From Python](../python.md) has examples.\n\n"
    return {"api/index.md": head + "| name | page |\n|---|---|\n" + "\n".join(rows) + "\n", **pages}


def api_page(title: str, names: list[str]) -> str:
    """Return the API page that documents these names."""
    return f"# API: {title}\n\n" + "\n\n".join(f"::: {name}" for name in names) + "\n"


def command_page(command: str) -> str:
    """Return the file name of a command's page; index.md is the list of all commands, not ``cloze index``."""
    return "index-command.md" if command == "index" else f"{command}.md"


def command_pages() -> dict[str, str]:
    """Return the Markdown of the command reference by path: one page per stored help page, and an index."""
    pages, rows = {}, []
    for path in sorted(HELP_PAGES.glob("*.txt")):
        text = path.read_text("utf-8")
        lines = [line.strip() for line in text.splitlines()]
        summary = next(line for line in lines[1:] if line)
        page = command_page(path.stem)
        pages[f"commands/{page}"] = f"# cloze {path.stem}\n\n```text\n{text.rstrip()}\n```\n"
        rows.append(f"| [`cloze {path.stem}`]({page}) | {summary} |")
    head = "# Commands\n\nWhat `cloze COMMAND --help` prints, for every command.\n\n| command | does |\n|---|---|\n"
    return {"commands/index.md": head + "\n".join(rows) + "\n", **pages}


def resolve_link(target: str, folder: str) -> str:
    """Return the link target for the site: unchanged for pages of the site, a URL for other files of the repository.

    Args:
        target: The link as written, relative to ``folder``.
        folder: The folder of the document, relative to the root of the repository.
    """
    path, mark, anchor = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return target
    place = posixpath.normpath(posixpath.join(folder, path))
    if place in ROOT_PAGES:
        return posixpath.relpath("docs/" + ROOT_PAGES[place], "docs" if folder == "." else folder) + mark + anchor
    if place.startswith("docs/") and not (ROOT / place).is_dir():
        return posixpath.relpath(place, "docs" if folder == "." else folder) + mark + anchor
    return f"{REPOSITORY}/{place}{mark}{anchor}"


def rewrite_links(markdown: str, folder: str) -> str:
    """Rewrite every link of a document for the site, except inside code blocks."""
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [_with_links(markdown[end : fence.start()], folder), fence[0]]
        end = fence.end()
    return "".join([*parts, _with_links(markdown[end:], folder)])


def _with_links(text: str, folder: str) -> str:
    return LINK.sub(lambda match: match[1] + resolve_link(match[2], folder) + match[3], text)


def navigation(paths: list[str]) -> list[Any]:
    """Return the navigation for the pages that exist."""

    def below(folder: str) -> list[str]:
        """Return the pages of a folder, with its index first."""
        pages = [path for path in paths if path.startswith(folder + "/") and path.endswith(".md")]
        return sorted(pages, key=lambda path: (not path.endswith(("/index.md", "/README.md")), path))

    guides = sorted(path for path in paths if re.fullmatch(r"\d\d-[\w-]+\.md", path))
    sections: list[Any] = [
        {"Home": "README.md"},
        {"Quickstart": "quickstart.md"},
        {"Guides": [*guides, "python.md"]},
        {"Using cloze": ["models.md", "troubleshooting.md", "offline.md"]},
        {"Reference": [{"Commands": below("commands")}, {"Python API": below("api")}]},
        {"Results": ["results.md", {"Experiments": below("experiments")}]},
        {"Development": ["architecture.md", "contributing.md", "changelog.md"]},
    ]
    return sections + ([{"中文": below("zh")}] if below("zh") else [])


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, and set the navigation (MkDocs event)."""
    from mkdocs.structure.files import File  # imported here, so that the tests do not need MkDocs

    pages = {**command_pages(), **api_pages()}
    for name, page in ROOT_PAGES.items():
        pages[page] = rewrite_links((ROOT / name).read_text("utf-8"), ".")
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    config.nav = navigation([file.src_uri for file in files if file.inclusion.is_in_nav()])
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page that is a file of ``docs/`` (MkDocs event)."""
    if page.file.generated_by is not None:
        return markdown
    return rewrite_links(markdown, posixpath.dirname(f"docs/{page.file.src_uri}"))
