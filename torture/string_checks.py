"""Properties that must hold for every string given to a tokenizer.

All encoding methods agree: ids alone, with offsets, truncated, and as half of a pair. Offsets lie inside the text and
never decrease. Where the original BERT defines the ids, they are equal to it, and the normalized text under the offsets
is the piece. No text can produce a special token, and every dropped token is reported.
"""

import re
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, TypeVar

from tests.text import reference
from tests.text.generated import BLOCKS, CAPITAL_SIGMA, RECLASSIFIED

from cloze.text import MASK, Encoding, Tokenizer
from cloze.text.boundaries import MAX_WINDOW

# The native tokenizer's table of ideographs starts extension E 256 characters late.
_MISSED_IDEOGRAPHS = range(0x2B820, 0x2B920)
# Some of these are newer than Unicode 3.2, but the generator uses them because all tables agree on them.
_AGREED = frozenset(chain(*BLOCKS.values(), "\u2066\u2067\u2068\u2069"))
_SURROGATE = re.compile("[\ud800-\udfff]")
# Beyond this length, the number of dropped tokens is only a lower bound.
_COUNTED_EXACTLY = 8192
# Python needs quadratic time to reorder long sequences of combining marks.
_LONGEST_SLICE = 1000
# Timings of shorter texts depend more on the machine than on the text.
_TIMED_ALONE = 500_000
_SHOWN = 60

Result = TypeVar("Result")


class Candidate(NamedTuple):
    """A tokenizer to test; ``ids_are_defined`` says whether it must give the original's ids."""

    name: str
    tokenizer: Tokenizer
    ids_are_defined: bool


@dataclass
class Findings:
    """Sums over the checked strings.

    ``slowest`` is the maximum number of seconds per megabyte over single huge texts; ``climbing`` is the same for
    tokenizers with further out-of-vocabulary rungs, which process rejected words one by one.
    """

    strings: int = 0
    compared: int = 0
    tokens: int = 0
    known: int = 0
    crashes: int = 0
    failed: int = 0
    megabytes: float = 0.0
    seconds: float = 0.0
    slowest: float = 0.0
    slowest_text: str = ""
    climbing: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Findings") -> None:
        """Add the findings of another process."""
        if other.slowest > self.slowest:
            self.slowest, self.slowest_text = other.slowest, other.slowest_text
        self.climbing = max(self.climbing, other.climbing)
        for name in ("strings", "compared", "tokens", "known", "crashes", "failed", "megabytes", "seconds", "failures"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def fail(self, place: str, what: str, text: str) -> None:
        """Record a failing string."""
        shown = ascii(text[:_SHOWN]) + (f" and {len(text) - _SHOWN:,} more" if len(text) > _SHOWN else "")
        self.failed += 1
        self.failures.append(f"{place}: {what}: {shown}")


def check_texts(
    texts: Sequence[str], candidate: Candidate, place: str, *, length: int, beyond_reading: bool = False
) -> Findings:
    """Check texts, each also truncated to ``length`` tokens and paired with the next one.

    ``beyond_reading``: these texts exceed the tokenizer's limits, so the ids need not match those of the
    original tokenizer.
    """
    findings = Findings()
    try:
        wholes, ids, cuts, pairs = _encode(texts, candidate.tokenizer, length, findings, place)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # panics of the native tokenizer are not subclasses of Exception
        if len(texts) > 1:
            findings = Findings()
            for number, text in enumerate(texts):
                alone = f"{place}[{number}]"
                findings.add(check_texts([text], candidate, alone, length=length, beyond_reading=beyond_reading))
            return findings
        findings.crashes += 1
        findings.fail(f"{place}, {candidate.name}", f"{type(error).__name__}: {error}"[:200], texts[0])
        return findings
    for number, text in enumerate(texts):
        whole, after = wholes[number], (number + 1) % len(texts)
        defined = candidate.ids_are_defined and not beyond_reading and is_defined(text, candidate.tokenizer.lowercase)
        findings.strings += 1
        findings.compared += defined
        findings.tokens += len(whole.ids)
        findings.known += sum(number != candidate.tokenizer.unknown_id for number in whole.ids)
        problems = _problems(text, candidate.tokenizer, whole, ids[number], defined, beyond_reading)
        both = [(text, whole), (texts[after], wholes[after])]
        problem = (
            next(problems, None)
            or cut_problem(cuts[number], both[:1], candidate.tokenizer, length)
            or cut_problem(pairs[number], both, candidate.tokenizer, length)
        )
        if problem is not None:
            findings.fail(f"{place}[{number}], {candidate.name}", problem, text)
    return findings


def _encode(
    texts: Sequence[str], tokenizer: Tokenizer, length: int, findings: Findings, place: str
) -> tuple[list[Encoding], list[list[int]], list[Encoding], list[Encoding]]:
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)

    def timed(name: str, call: Callable[[], Result], times: int = 1) -> Result:
        # CPU time of this process, so that other processes do not matter.
        start = time.process_time()
        result = call()
        seconds, megabytes = time.process_time() - start, times * size / 1e6
        findings.seconds += seconds
        findings.megabytes += megabytes
        if size >= _TIMED_ALONE and tokenizer.settings.ladder:
            findings.climbing = max(findings.climbing, seconds / megabytes)
        elif size >= _TIMED_ALONE and seconds / megabytes > findings.slowest:
            findings.slowest, findings.slowest_text = seconds / megabytes, f"{place}, {name}"
        return result

    # Normalization may turn one letter into up to four.
    room = 4 * max(map(len, texts)) + 8
    seconds = [*texts[1:], texts[0]]
    return (
        timed("encode_batch", lambda: tokenizer.encode_batch(texts, special=False, max_length=room)),
        timed("encode_ids", lambda: tokenizer.encode_ids(texts)),
        timed("truncated", lambda: tokenizer.encode_batch(texts, max_length=length)),
        timed("pairs", lambda: tokenizer.encode_batch(texts, seconds, max_length=length), times=2),
    )


def _problems(
    text: str, tokenizer: Tokenizer, whole: Encoding, ids: list[int], defined: bool, beyond_reading: bool
) -> Iterator[str]:
    if whole.ids != ids:
        yield "encode_ids gives other ids than encode_batch"
    if whole.tokens != [tokenizer.piece(number) for number in whole.ids]:
        yield "the tokens are not the pieces of the ids"
    if not (tokenizer.special_ids - {tokenizer.unknown_id}).isdisjoint(whole.ids):
        yield "the text has forged a special token"
    # For a word beyond the length limit, the tokenizer cannot know whether the rest would have produced tokens.
    if whole.dropped and not beyond_reading and max(map(len, text.split()), default=0) <= MAX_WINDOW:
        yield f"{whole.dropped} tokens dropped where there was room for all"
    if (problem := offset_problem(text, whole.offsets)) is not None:
        yield problem
    if defined:
        expected = reference.encode(_SURROGATE.sub("\ufffd", text), _ids(tokenizer), tokenizer.lowercase)
        if whole.ids != expected:
            yield f"ids {_first_difference(whole.ids, expected)}"
        if (problem := slice_problem(text, tokenizer, whole)) is not None:
            yield problem
    if MASK in text and not beyond_reading:
        masks = tokenizer(text, special=False, max_length=4 * len(text), read_mask=True)
        marked = [masks.offsets[place] for place, number in enumerate(masks.ids) if number == tokenizer.mask_id]
        if [text[start:end] for start, end in marked] != [MASK] * text.count(MASK):
            yield "read_mask has not read every mask in its place"


def offset_problem(text: str, offsets: Sequence[tuple[int, int]]) -> str | None:
    """Return the first offset that leaves the text, is empty, or decreases."""
    last = (0, 0)
    for number, (start, end) in enumerate(offsets):
        if not 0 <= start < end <= len(text):
            return f"offsets {(start, end)} of token {number} in a text of {len(text)} characters"
        if start < last[0] or end < last[1]:
            return f"offsets {(start, end)} of token {number} after {last}"
        last = (start, end)
    return None


def slice_problem(text: str, tokenizer: Tokenizer, encoding: Encoding) -> str | None:
    """Return the first token whose offsets do not cover its own text.

    A first or last character that becomes several letters (a Korean syllable) may be shared with the neighbouring
    token; everything in between must belong to the token.
    """
    for number, token, (start, end) in zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True):
        if number == tokenizer.unknown_id or end - start > _LONGEST_SLICE:
            continue
        bare = token.removeprefix("##")
        under = normalized(text[start:end], tokenizer.lowercase)
        inner = normalized(text[start + 1 : end - 1], tokenizer.lowercase)
        if under != bare and not (bare in under and inner in bare):
            return f"token {token!a} has the offsets {(start, end)} of {text[start:end]!a}"
    return None


def cut_problem(cut: Encoding, parts: Sequence[tuple[str, Encoding]], tokenizer: Tokenizer, length: int) -> str | None:
    """Return how a truncated text or pair differs from the whole ones truncated as in the original."""
    name_of_cut = "pair" if len(parts) == 2 else "text"
    if len(parts) == 2 and not parts[1][1].ids:
        parts = parts[:1]  # a second text without tokens is omitted together with its [SEP]
    kept = [list(whole.ids) for _, whole in parts]
    if len(kept) == 2:
        reference.truncate_pair(kept[0], kept[1], length - 3)
    else:
        del kept[0][length - 2 :]
    ids, offsets, segments, sources = [tokenizer.cls_id], [(0, 0)], [0], list[int | None]([None])
    for source, ((_, whole), some) in enumerate(zip(parts, kept, strict=True)):
        ids += [*some, tokenizer.sep_id]
        offsets += [*whole.offsets[: len(some)], (0, 0)]
        segments += [source] * (len(some) + 1)
        sources += [*[source] * len(some), None]
    for name, expected in (("ids", ids), ("offsets", offsets), ("segments", segments), ("sources", sources)):
        if getattr(cut, name) != expected:
            return f"{name_of_cut} cut to {length}: {name} differ from the whole text's"
    lost = sum(len(whole.ids) - len(some) for (_, whole), some in zip(parts, kept, strict=True))
    exactly = all(len(text) <= _COUNTED_EXACTLY for text, _ in parts)
    said = cut.dropped == lost if exactly else (cut.dropped > 0) == (lost > 0) and cut.dropped <= lost
    gave_up = any(whole.dropped for _, whole in parts)
    return None if said or gave_up else f"cut to {length}: {cut.dropped} tokens reported as dropped, not {lost}"


def normalized(text: str, lowercase: bool) -> str:
    """Normalize a text as the original does before it splits words into pieces."""
    cleaned = reference.clean(_SURROGATE.sub("\ufffd", text))
    return reference.strip_accents(cleaned.lower()) if lowercase else cleaned


def is_defined(text: str, lowercase: bool) -> bool:
    """Return whether no character of the text is a known difference from the original."""
    return all(_is_settled(character) for character in set(text)) and not (lowercase and CAPITAL_SIGMA in text)


@lru_cache(maxsize=2**17)
def _is_settled(character: str) -> bool:
    code, category = ord(character), unicodedata.category(character)
    if character in _AGREED:
        return True
    if category == "Co" or code in _MISSED_IDEOGRAPHS or character in RECLASSIFIED:
        return False
    if category == "Cs" or reference.is_ideograph(character) or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code < 0xFDF0:
        return True
    # Characters newer than a table are classified by that table. This makes no difference for caseless letters, numbers
    # and symbols, which no rule of BERT depends on.
    newer = unicodedata.ucd_3_2_0.category(character) == "Cn"
    return not newer or category in ("Lo", "Lm", "Ll") or category[0] in "NS"


@lru_cache(maxsize=8)
def _ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(tokenizer.pieces)}


def _first_difference(found: list[int], expected: list[int]) -> str:
    place = next((at for at, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other), None)
    place = min(len(found), len(expected)) if place is None else place
    return f"{found[place : place + 5]} at token {place}, where the original has {expected[place : place + 5]}"
