"""Words of texts in any script.

Letters, digits, underscores and the marks of letters form words, which anything else separates.
Scripts without spaces between words (Han, Kana, Thai, Lao, Khmer, Myanmar) are split into
characters, each with its marks, as the evaluation of MLQA does for Chinese (Lewis et al. 2020,
https://arxiv.org/abs/1910.07475). An emoji is a word. Composed and decomposed characters are equal,
since texts are compared in Unicode's form NFC.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable

# Letters of scripts that put no space between words.
_SPACELESS = (
    "\u0e01-\u0e3a\u0e40-\u0e4e"  # Thai
    "\u0e81-\u0ece\u0edc-\u0edf"  # Lao
    "\u1000-\u103f\u1050-\u108f\u109a-\u109d\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa7f"  # Myanmar
    "\u1780-\u17d3\u17d7\u17dc\u17dd"  # Khmer
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b"  # radicals and signs of Han
    "\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"  # Kana
    "\u3105-\u312f\u31a0-\u31bf"  # Bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"  # Han
)
_EMOJI = "\u231a-\u23ff\u2600-\u27bf\u2b05-\u2b55\U0001f000-\U0001faff"
_SKIN_TONES = "\U0001f3fb-\U0001f3ff"
_JOINERS = "\u200c\u200d"
_ASCII_WORD = re.compile(r"\w+", re.ASCII)


def split_words(text: str) -> list[str]:
    """Return the words of a text, in lower case and form NFC."""
    lower = text.lower()
    if lower.isascii():
        return _ASCII_WORD.findall(lower)
    return word_pattern().findall(unicodedata.normalize("NFC", lower))


def count_words(text: str) -> int:
    """Return the number of runs without white space, and of characters in scripts without it."""
    return len(separate_characters(text).split())


def separate_characters(text: str) -> str:
    """Return a text with spaces around each emoji and each character of a script without spaces."""
    return text if text.isascii() else _character_pattern().sub(r" \g<0> ", text)


def fold(text: str) -> str:
    """Return a text without differences of case, width and composition (NFKC, case folding)."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return folded if folded.isascii() else unicodedata.normalize("NFKC", folded)


@functools.cache
def characters_of(categories: str) -> frozenset[str]:
    """Return the marks (M), punctuation (P) or both (MP), by the letters of Unicode's categories.

    Other planes than the searched ones have none.
    """
    characters = map(chr, (*range(0x20000), *range(0xE0000, 0xE0200)))
    return frozenset(x for x in characters if unicodedata.category(x)[0] in categories)


@functools.cache
def mark_ranges() -> str:
    """Return the marks as ranges of a regular expression."""
    return _join_ranges(characters_of("M"))


@functools.cache
def _character_pattern() -> re.Pattern[str]:
    """Return the pattern of a character that is a word of its own, with its marks."""
    marks = mark_ranges()
    emoji = rf"[{_EMOJI}](?:[{marks}{_SKIN_TONES}]|\u200d[{_EMOJI}])*"
    return re.compile(rf"{emoji}|[{_SPACELESS}][{marks}]*")


@functools.cache
def word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word in form NFC."""
    marks = mark_ranges()
    letters = rf"[^\W{_SPACELESS}]+[{marks}]*"
    return re.compile(rf"{letters}(?:[{_JOINERS}]?{letters})*|{_character_pattern().pattern}")


def _join_ranges(characters: Iterable[str]) -> str:
    """Return characters as ranges of a regular expression."""
    ranges: list[list[int]] = []
    for code in sorted(map(ord, characters)):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)
