"""Write the grammatical minimal pairs that ``cloze compare`` scores models on.

    python scripts/make_minimal_pairs.py

Every pair is a grammatical sentence and the same sentence with one other word that makes it ungrammatical. The words
are common in the bundled books, so that small vocabularies contain them.

Pairs come in couples: the word that is right in the first pair is wrong in the second, and the other way round. In
each phenomenon, the right and the wrong words are therefore the same words with the same counts. A model that knows
only how frequent or how long words are gets exactly half of the pairs right.
"""

import lzma
import random
from collections.abc import Callable, Iterator
from pathlib import Path

OUT = Path(__file__).parent.parent / "src" / "cloze" / "comparison" / "minimal_pairs.tsv.xz"
COUPLES = 80  # per phenomenon: 160 pairs
SEED = 0

# A pair: the words before the critical word, the right word, the wrong word, and the words after it.
Pair = tuple[str, str, str, str]
Couple = tuple[Pair, Pair]
Choose = random.Random

PEOPLE = [
    *(("man", "men"), ("woman", "women"), ("boy", "boys"), ("girl", "girls"), ("friend", "friends")),
    *(("brother", "brothers"), ("sister", "sisters"), ("child", "children"), ("servant", "servants")),
    *(("sailor", "sailors"), ("stranger", "strangers"), ("lady", "ladies")),
    *(("gentleman", "gentlemen"), ("son", "sons"), ("daughter", "daughters")),
]
THINGS = [
    *(("house", "houses"), ("room", "rooms"), ("door", "doors"), ("window", "windows"), ("table", "tables")),
    *(("chair", "chairs"), ("book", "books"), ("letter", "letters"), ("ship", "ships"), ("boat", "boats")),
    *(("horse", "horses"), ("dog", "dogs"), ("tree", "trees"), ("stone", "stones"), ("picture", "pictures")),
    *(("bird", "birds"), ("flower", "flowers")),
]
MASS = ["water", "money", "gold", "bread", "wine", "blood", "light", "tea", "coffee", "paper", "smoke", "time"]
# Verbs in the singular and the plural, with what may follow them.
PRESENT = [
    ("is", "are", ["very tired", "quite alone", "in the garden", "at the door", "here again", "not ready"]),
    ("was", "were", ["very happy", "quite sure", "in the street", "at home", "there before", "not afraid"]),
    ("has", "have", ["gone away", "come back", "seen the king", "found the money", "lost the way"]),
    ("knows", "know", ["the truth", "the old story", "the way to the river"]),
    ("wants", "want", ["more money", "to go home", "to see the sea"]),
    ("comes", "come", ["here every day", "from the town", "home at night"]),
    ("lives", "live", ["near the river", "in this house", "in the town"]),
]
BEFORE_SUBJECT = ["the", "the old", "the young", "the poor", "the other", "my"]
PLACES = ["near", "behind", "beside", "with", "before"]
# Base, past and participle, with an object.
VERBS = [
    ("take", "took", "taken", "the letter"),
    ("see", "saw", "seen", "the ship"),
    ("write", "wrote", "written", "the story"),
    ("give", "gave", "given", "the money to the boy"),
    ("break", "broke", "broken", "the window"),
    ("eat", "ate", "eaten", "the bread"),
    ("drink", "drank", "drunk", "the wine"),
    ("know", "knew", "known", "the truth"),
    ("choose", "chose", "chosen", "the best horse"),
    ("forget", "forgot", "forgotten", "the whole story"),
    ("begin", "began", "begun", "the work"),
    ("hide", "hid", "hidden", "the gold"),
    ("throw", "threw", "thrown", "the stone"),
    ("drive", "drove", "driven", "the horses"),
    ("speak", "spoke", "spoken", "to the captain"),
    ("go", "went", "gone", "to the river"),
]
MET = ["met", "knew", "followed", "believed", "forgot", "loved", "understood", "remembered"]
CASES = [("he", "him"), ("she", "her"), ("they", "them"), ("we", "us"), ("I", "me")]
REFLEXIVE = [
    ("himself", ["man", "boy", "king", "gentleman", "father", "brother", "son", "husband", "uncle"]),
    ("herself", ["woman", "girl", "queen", "lady", "mother", "sister", "daughter", "wife", "aunt"]),
    ("themselves", ["men", "women", "boys", "girls", "children", "soldiers", "sailors", "ladies", "gentlemen"]),
]
TO_ONESELF = [
    ("saw", "in the glass"),
    ("asked", "a question"),
    ("told", "the truth"),
    ("found", "in the garden"),
    ("hid", "behind the door"),
    ("threw", "into a chair"),
    ("looked at", "again"),
    ("spoke to", "for a moment"),
]
TRANSITIVE = ["found", "brought", "caught", "took", "carried", "made"]
INTRANSITIVE = ["arrived", "slept", "appeared", "fell", "came", "vanished", "rose", "smiled"]
WHEN = ["at night", "in the morning", "at last", "an hour before", "in the garden", "on the road", "near the house"]


def subject(choose: Choose) -> tuple[str, str]:
    """Return a subject in the singular and in the plural."""
    before = choose.choice(BEFORE_SUBJECT)
    singular, plural = choose.choice(PEOPLE)
    return f"{before} {singular}", f"{before} {plural}"


def agreement(choose: Choose) -> Couple:
    """Return a verb that agrees with its subject: the boy is / are; the boys are / is."""
    one, many = subject(choose)
    singular, plural, rests = choose.choice(PRESENT)
    rest = choose.choice(rests)
    return (one, singular, plural, rest), (many, plural, singular, rest)


def distant_agreement(choose: Choose) -> Couple:
    """Return a verb after a noun of the other number: the boy near the doors is / are; the boys near the door ..."""
    (one, many), place = subject(choose), choose.choice(PLACES)
    thing, things = choose.choice(THINGS)
    singular, plural, rests = choose.choice(PRESENT)
    rest = choose.choice(rests)
    first = (f"{one} {place} the {things}", singular, plural, rest)
    return first, (f"{many} {place} the {thing}", plural, singular, rest)


def determiners(choose: Choose) -> Couple:
    """Return a determiner or noun of the right number: this / these boy; this boy / boys."""
    before = f"{choose.choice(['he', 'she', 'they', 'we'])} {choose.choice(['saw', 'found', 'knew', 'liked', 'left'])}"
    (one, many), (near, nears) = choose.choice(THINGS + PEOPLE), choose.choice([("this", "these"), ("that", "those")])
    rest = choose.choice(WHEN)
    if choose.random() < 0.5:
        return (before, near, nears, f"{one} {rest}"), (before, nears, near, f"{many} {rest}")
    return (f"{before} {near}", one, many, rest), (f"{before} {nears}", many, one, rest)


def reflexives(choose: Choose) -> Couple:
    """Return a reflexive pronoun of the right gender and number: the king saw himself / herself."""
    (one, ones), (other, others) = choose.sample(REFLEXIVE, 2)
    before, (verb, rest) = choose.choice(["the", "the old", "the poor", "the young"]), choose.choice(TO_ONESELF)
    first = (f"{before} {choose.choice(ones)} {verb}", one, other, rest)
    return first, (f"{before} {choose.choice(others)} {verb}", other, one, rest)


def verb_forms(choose: Choose) -> Couple:
    """Return the form that an auxiliary requires: has taken / took; will take / taken; yesterday he took / taken."""
    base, past, participle, rest = choose.choice(VERBS)
    who, _ = subject(choose)
    contexts = [
        (f"{who} {choose.choice(['has', 'had', 'had often', 'has never'])}", participle),
        (f"{who} {choose.choice(['will', 'would', 'could', 'must', 'did not'])}", base),
        (f"{choose.choice(['yesterday', 'then', 'at last'])} {who}", past),
    ]
    (first, form), (second, other) = choose.sample(contexts, 2)
    return (first, form, other, rest), (second, other, form, rest)


def pronoun_case(choose: Choose) -> Couple:
    """Return a pronoun in the right case: the man met him / he; yesterday he / him met the man."""
    who, verb = choose.choice(subject(choose)), choose.choice(MET)
    nominative, accusative = choose.choice(CASES)
    when, start = choose.choice(WHEN), choose.choice(["yesterday", "then", "at last", "perhaps"])
    return (f"{who} {verb}", accusative, nominative, when), (start, nominative, accusative, f"{verb} {who}")


def quantifiers(choose: Choose) -> Couple:
    """Return a quantifier that fits its noun: many / much ships; each / all ship; one / two ship."""
    before = f"{choose.choice(['he', 'she', 'they', 'we'])} {choose.choice(['saw', 'found', 'wanted', 'took', 'left'])}"
    (one, many), when = choose.choice(THINGS), choose.choice(WHEN)
    if choose.random() < 0.5:
        degree = choose.choice(["so", "too", "very", "as"])
        mass = choose.choice(MASS)
        before = f"{before} {degree}"
        return (before, "many", "much", f"{many} {when}"), (before, "much", "many", f"{mass} {when}")
    single, several = choose.choice([("each", "all"), ("every", "all"), ("each", "both"), ("one", "two")])
    return (before, single, several, f"{one} {when}"), (before, several, single, f"{many} {when}")


def argument_structure(choose: Choose) -> Couple:
    """Return a verb with or without an object: the man found / arrived the box; the man arrived / found at night."""
    who, when = choose.choice(subject(choose)), choose.choice(WHEN)
    transitive, intransitive = choose.choice(TRANSITIVE), choose.choice(INTRANSITIVE)
    thing = choose.choice(choose.choice(THINGS))
    return (who, transitive, intransitive, f"the {thing} {when}"), (who, intransitive, transitive, when)


PHENOMENA: dict[str, Callable[[Choose], Couple]] = {
    "agreement": agreement,
    "agreement across a noun": distant_agreement,
    "determiners": determiners,
    "reflexives": reflexives,
    "verb forms": verb_forms,
    "pronoun case": pronoun_case,
    "quantifiers": quantifiers,
    "argument structure": argument_structure,
}


def sentence(before: str, word: str, after: str) -> str:
    """Return a sentence with a capital and a full stop."""
    text = f"{before} {word} {after}."
    return text[0].upper() + text[1:]


def couples(name: str) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Yield different couples of a phenomenon, each pair as (good, bad)."""
    choose, seen = random.Random(f"{SEED} {name}"), set[str]()
    while len(seen) < 2 * COUPLES:
        couple = PHENOMENA[name](choose)
        first, second = ((sentence(b, right, a), sentence(b, wrong, a)) for b, right, wrong, a in couple)
        if first[0] not in seen and second[0] not in seen:
            seen |= {first[0], second[0]}
            yield first, second


def make() -> bytes:
    """Return the contents of the file."""
    rows = ["phenomenon\tgood\tbad"]
    for name in PHENOMENA:
        rows += [f"{name}\t{good}\t{bad}" for couple in couples(name) for good, bad in couple]
    return lzma.compress(("\n".join(rows) + "\n").encode("utf-8"), preset=9)


def main() -> None:
    """Write the file."""
    OUT.write_bytes(make())
    print(f"{OUT.name}: {2 * COUPLES * len(PHENOMENA):,} pairs, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
