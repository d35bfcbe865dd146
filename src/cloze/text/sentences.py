"""Text -> sentences, what next-sentence pairs are made of (Devlin et al. 2019, section 3.1, task 2).

The rules of where a sentence ends come from ``sentencex``; this module chooses the language and trims the
white space.
"""

import sentencex

from cloze.text.characters import is_ideograph, replace_surrogates

# Chinese text with numbers and names in it stays well above this share, English with a quotation well below.
_CHINESE_SHARE = 0.2
# Enough to tell the language by.
_SAMPLE = 2000


def split_sentences(text: str, language: str | None = None) -> list[str]:
    """Split a text into sentences, trimmed and never empty; nothing but white space is lost.

    ``language`` is an ISO 639 code; without one it is ``zh`` where ideographs are common, ``en`` elsewhere.
    """
    text = replace_surrogates(text)
    parts = sentencex.segment(language or guess_language(text), text)
    return [sentence for part in parts if (sentence := part.strip())]


def guess_language(text: str) -> str:
    """Return ``zh`` or ``en`` by the share of ideographs among the letters at the text's start."""
    letters = [character for character in text[:_SAMPLE] if character.isalpha()]
    ideographs = sum(is_ideograph(character) for character in letters)
    return "zh" if ideographs > _CHINESE_SHARE * len(letters) else "en"
