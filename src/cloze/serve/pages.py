"""The pages: one to try every route, one that tells of them. Plain files from the package, nothing from elsewhere."""

from pathlib import Path

from fastapi import APIRouter, Response

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
# Which file lies at which path. Only these can be asked for: a path is looked up here and never on the disk.
PAGES = {"/": "index.html", "/docs": "docs.html"}

router = APIRouter(include_in_schema=False)


def _add(path: str, file: Path) -> None:
    content, kind = file.read_bytes(), f"{TYPES[file.suffix]}; charset=utf-8"

    async def endpoint() -> Response:
        return Response(content, headers={"content-type": kind})

    router.add_api_route(path, endpoint, methods=["GET"])


for _path, _name in PAGES.items():
    _add(_path, STATIC / _name)
for _file in sorted(STATIC.iterdir()):
    if _file.suffix in TYPES and _file.suffix != ".html":
        _add(f"/static/{_file.name}", _file)
