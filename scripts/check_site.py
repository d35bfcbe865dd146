"""Check the built documentation site: links, anchors, and that no page loads anything from the network.

    python scripts/check_site.py site

Prints one line per problem and exits with 1 if there is any.
"""

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose files a browser loads without a click.
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
LOADED_RELATIONS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch", "manifest"}
CSS_URL = re.compile(r"(?:url\(\s*|@import\s+)['\"]?((?:https?:)?//[^'\")\s]+)")


@dataclass
class Page(HTMLParser):
    """Parser that collects the links, loaded resources and anchors of an HTML page."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record what one tag links to, loads and defines."""
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and LOADED_RELATIONS & set(values.get("rel", "").split()):
            self.loaded.append(values.get("href", ""))
        if tag in LOADED and LOADED[tag] in values:
            self.loaded.append(values[LOADED[tag]])


def parse(path: Path) -> Page:
    """Return the parsed page."""
    page = Page()
    page.feed(path.read_text("utf-8"))
    return page


def is_remote(target: str) -> bool:
    """Return whether a browser would request this target over the network."""
    return target.startswith("//") or urlsplit(target).scheme in ("http", "https")


def problems(site: Path) -> list[str]:
    """Return a line for every broken link or anchor, and for every resource that is loaded from the network."""
    pages = {path.resolve(): parse(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        found += [f"{name}: loads {target} from the network" for target in page.loaded if is_remote(target)]
        for target in [*page.links, *page.loaded]:
            problem = None if is_remote(target) else broken(target, path, site.resolve(), pages)
            found += [f"{name}: {problem}"] if problem else []
    for style in sorted(site.rglob("*.css")):
        remote = CSS_URL.findall(style.read_text("utf-8"))
        found += [f"{style.relative_to(site)}: loads {target} from the network" for target in remote]
    return found


def broken(target: str, path: Path, site: Path, pages: dict[Path, Page]) -> str | None:
    """Return what is wrong with a relative link of a page; None if its file and anchor exist."""
    parts = urlsplit(target)
    if parts.scheme:  # mailto:, data:
        return None
    place = unquote(parts.path)
    goal = path if not place else (site / place.lstrip("/") if place.startswith("/") else path.parent / place).resolve()
    if goal.is_dir():
        goal /= "index.html"
    if not goal.exists():
        return f"{target} leads to no file"
    anchor = unquote(parts.fragment)
    if anchor and goal in pages and anchor not in pages[goal].anchors | {"__top"}:
        return f"{target} leads to no anchor"
    return None


def main() -> None:
    """Print the problems of the site that is named on the command line."""
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "site")
    if not (site / "index.html").is_file():
        sys.exit(f"{site}: no built site; run `make docs` first")
    lines = problems(site)
    print("\n".join(lines) if lines else f"{site}: no broken links, nothing loaded from the network")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
