"""``cloze heads`` and ``cloze inspect``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.cli.console import Machine, Reporter, print_json, print_table
from cloze.cli.outputs import check_folder
from cloze.errors import ConfigError
from cloze.inspect.settings import HeadSettings
from cloze.models import SHIPPED_MODEL

HERE, HEADS = Machine(), HeadSettings()


def heads(
    texts: Annotated[list[Path], Parameter(help="Text files, with a blank line between documents.")],
    /,
    *,
    model: str = SHIPPED_MODEL,
    out: Path = Path("heads"),
    related: Path | None = None,
    settings: Annotated[HeadSettings, Parameter(name="*")] = HEADS,
    json: bool = False,
    machine: Annotated[Machine, Parameter(name="*")] = HERE,
) -> None:
    """Score every attention head for six patterns over a corpus, each against its null.

    The patterns: the next token, the one before, the same or related tokens, those in the other sentence, the tokens
    that predict a token, the separators; and beside them a token's attention to itself, and broad attention.

    Args:
        model: A model folder, or a hub name.
        out: Where to write heads.json, heads.png and heads.svg.
        related: A file of words that belong together, a group a line, beside those with close vectors.
        json: Print what heads.json holds.
    """
    from cloze.corpus.documents import read_documents
    from cloze.inspect.relations import read_related
    from cloze.inspect.report import HEADER, example_lines, summary_lines, survey_json, table_rows, write_survey
    from cloze.inspect.survey import survey_heads
    from cloze.predict import load
    from cloze.tasks.tables import is_table

    for path in filter(is_table, texts):  # whose lines would be taken for text
        raise ConfigError(f"{path}: is a table; plain text was expected, with a blank line between documents")
    check_folder(out)
    groups = None if related is None else read_related(related)
    loaded = load(model, device=machine.use())
    with Reporter() as reporter:
        found = survey_heads(loaded, read_documents(texts), settings, groups=groups, progress=reporter)
    write_survey(found, model, out)
    if json:
        print_json(survey_json(found, model))
        return
    print_table(HEADER, table_rows(found), title=f"{model}: {found.sequences:,} sequences, {found.tokens:,} tokens")
    print_table(("label", "clearest in", "for example"), example_lines(found))
    print("\n".join([*summary_lines(found), f"{out}: heads.json, heads.png, heads.svg"]))


def inspect(
    first: str | None = None,
    second: str | None = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    out: Path,
    heads: Path | None = None,
    json: bool = False,
    machine: Annotated[Machine, Parameter(name="*")] = HERE,
) -> None:
    """Write a page that shows what attention does with a text, or two: one file, which needs no network.

    It has every word's attention, head by head; the weights as a matrix; all heads by what they do; and the words that
    are near to each word, layer by layer. Where the model fills blanks, it also has what each layer would fill in;
    [MASK] in a text is a blank.

    Args:
        first: A text; an example pair if there is none.
        second: A second text, for the attention between the two.
        model: A model folder, or a hub name.
        out: Where to write the page, such as page.html.
        heads: The heads.json that 'cloze heads' has written for this model, to colour the heads by.
        json: Print JSON.
    """
    from cloze.inspect.views.data import build_view, default_texts, trace_forward
    from cloze.inspect.views.page import write_page
    from cloze.predict import load

    loaded = load(model, device=machine.use())
    texts = default_texts(loaded) if first is None else (first, second)
    looked = trace_forward(loaded, *texts)
    size = write_page(build_view(looked, name=Path(model).name, heads_file=heads), out)
    tokens, cut = len(looked.encoding.tokens), looked.encoding.dropped
    if json:
        print_json({"page": str(out), "bytes": size, "tokens": tokens, "cut": cut})
    else:
        rest = f" ({cut} more are beyond the model's length and were cut)" if cut else ""
        print(f"{out}: {tokens} tokens{rest}, {size / 1e6:.1f} MB; open it in a browser")
