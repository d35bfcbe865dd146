"""Texts beyond a model's length: cut, or their head and tail kept, or read in overlapping windows; never in silence.

Head and tail are a quarter and three quarters of the room, as 128 and 382 tokens in Sun et al. (2019), where that was
best for reviews. Windows lose nothing: whoever asks joins what is said of each.
"""

from collections.abc import Sequence
from dataclasses import replace

from cloze.kinds import LongTexts
from cloze.text.encoding import Encoding, Pieces
from cloze.text.tokenizer import Tokenizer

_HEAD = 0.25


def encode_long(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None, how: LongTexts
) -> list[list[Encoding]]:
    """The sequences of each text, or pair of texts: one, unless it is read in windows and too long for one."""
    if how == "cut":
        return [[encoding] for encoding in tokenizer.encode_batch(texts, pairs)]
    firsts = tokenizer.encode_pieces(texts)
    if pairs is None:
        return [_encode(tokenizer, (first,), how) for first in firsts]
    seconds = tokenizer.encode_pieces(pairs)
    return [_encode(tokenizer, both, how) for both in zip(firsts, seconds, strict=True)]


def _encode(tokenizer: Tokenizer, parts: tuple[Pieces, ...], how: LongTexts) -> list[Encoding]:
    if how == "head-tail":
        return [tokenizer.assemble(*head_and_tail(parts, tokenizer.room(len(parts))))]
    *before, last = parts
    room = tokenizer.room(len(parts))
    # A first text that is long itself must leave the second its half.
    before = [_kept(part, part.cut(0, max(room // 2, room - len(last)))) for part in before]
    room -= sum(map(len, before))
    return [tokenizer.assemble(*before, last.cut(*place)) for place in window_places(len(last), room, room // 2)]


def head_and_tail(parts: tuple[Pieces, ...], room: int) -> tuple[Pieces, ...]:
    """Take what is too much out of the middle of the longest parts."""
    # The longest give first, down to the length of the next.
    limit = room
    while sum(min(len(part), limit) for part in parts) > room:
        limit -= 1
    return tuple(_ends(part, limit) for part in parts)


def _ends(part: Pieces, room: int) -> Pieces:
    if len(part) <= room:
        return part
    head = round(_HEAD * room)
    return _kept(part, part.cut(0, head) + part.cut(len(part) - (room - head), len(part)))


def _kept(whole: Pieces, kept: Pieces) -> Pieces:
    """What is kept, knowing what was not."""
    return replace(kept, unread=whole.unread + len(whole) - len(kept))


def window_places(length: int, room: int, step: int) -> list[tuple[int, int]]:
    """Stretches of at most ``room`` tokens, one every ``step``, that together are all of them."""
    places = [(0, min(room, length))]
    while places[-1][1] < length:
        start = places[-1][0] + max(1, min(step, room))
        places.append((start, min(start + room, length)))
    return places
