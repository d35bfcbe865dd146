"""Convert SIGHAN's confusion set (characters that are mistaken for each other) to a file for ``--similar``.

    python scripts/make_similar.py ../shared/data/sighan_csc/confusion.txt runs/zh/similar.txt

Lines with a character, a colon and similar characters become the character, a tab, and the similar ones separated by
spaces.
"""

import sys
from pathlib import Path


def main(source: Path, target: Path) -> None:
    """Convert the file."""
    rows = (line.partition(":") for line in source.read_text(encoding="utf-8").splitlines() if ":" in line)
    lines = [f"{sign.strip()}\t{' '.join(others.strip())}\n" for sign, _, others in rows if others.strip()]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
