"""The end of a text that may go on as one of some words."""

from collections.abc import Iterable


def count_partial(text: str, words: Iterable[str]) -> int:
    """How many characters at the end of `text` begin one of `words`: the most of them, less than a word."""
    return max((_count_one(text, word) for word in words), default=0)


def _count_one(text: str, word: str) -> int:
    if word[0] not in text[-len(word) + 1 :]:
        return 0
    longest = min(len(text), len(word) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(word[:size])), 0)
