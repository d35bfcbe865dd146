"""How likely a text is: pseudo-log-likelihood (Salazar et al. 2020, "Masked language model scoring").

A model that sees both sides has no chain rule. Each token is hidden in turn and its probability read off, given all of
the others; the sum ranks texts as a likelihood would. A long text is read in windows.
"""

from collections.abc import Iterator, Sequence

from cloze.predict.blanks import blank_logs, token_windows, with_ids
from cloze.predict.model import Model
from cloze.predict.results import Score
from cloze.text import Encoding


def score_texts(model: Model, texts: Sequence[str]) -> list[Score]:
    """Hide every token of every text once."""
    windows = token_windows(model.tokenizer, texts)
    mask_id = model.tokenizer.mask_id

    def hidden() -> Iterator[Encoding]:
        for text in windows:
            for window in text:
                for place in window.places:
                    yield with_ids(window.encoding, {place: mask_id})

    logs = blank_logs(model, hidden())
    scores = []
    for text, own in zip(texts, windows, strict=True):
        asked = [(window.encoding, place) for window in own for place in window.places]
        values = [float(next(logs)[0, encoding.ids[place]]) for encoding, place in asked]
        scores.append(Score(text, tuple(encoding.tokens[place] for encoding, place in asked), tuple(values)))
    return scores
