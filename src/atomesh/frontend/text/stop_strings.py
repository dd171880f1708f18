"""Finding stop strings in text that comes in pieces, in one pass and with nothing held back in vain.

One Knuth–Morris–Pratt automaton for each stop string, all fed character by character: the deepest state
is the longest end of the text that may still become a stop string.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`stop` ends after `end` characters of the piece that was searched."""

    stop: str
    end: int


class StopSearch:
    """Of the stop strings, the first to be completed wins; of those completed at once, the first in
    the list, as in vLLM."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._first_characters = frozenset(stop[0] for stop in stops)
        self.held = 0

    @cached_property
    def _automata(self) -> list["_Automaton"]:
        """Made when the first character of one is met: most answers never meet any."""
        return [_Automaton(stop) for stop in dict.fromkeys(self._stops)]

    def feed(self, piece: str) -> StopMatch | None:
        """Search on through `piece`; then `held` last characters may be the beginning of a stop string."""
        for index, character in enumerate(piece):
            if self.held == 0 and character not in self._first_characters:
                continue
            for automaton in self._automata:
                if automaton.advance(character):
                    return StopMatch(automaton.stop, index + 1)
            self.held = max(automaton.matched for automaton in self._automata)
        return None

    def pass_over(self, piece: str) -> None:
        """As `feed`, but what ends within `piece` is no match; what only begins in it may become one."""
        for character in piece:
            if self.held == 0 and character not in self._first_characters:
                continue
            for automaton in self._automata:
                if automaton.advance(character):
                    automaton.fall_back()
            self.held = max(automaton.matched for automaton in self._automata)


class _Automaton:
    """Its fallbacks are found only as far as the text has matched: many stop strings cost little."""

    __slots__ = ("_fallbacks", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._fallbacks = [0, 0]  # by matched characters: how many stay matched when the next one differs

    def advance(self, character: str) -> bool:
        """True when `character` completes the stop string."""
        self.matched = self._match(self.matched, character)
        if self.matched == len(self._fallbacks):
            self._fallbacks.append(self._match(self._fallbacks[-1], character))
        return self.matched == len(self.stop)

    def _match(self, matched: int, character: str) -> int:
        """How many characters match with one more, after `matched` of them."""
        while matched and self.stop[matched] != character:
            matched = self._fallbacks[matched]
        return matched + 1 if self.stop[matched] == character else 0

    def fall_back(self) -> None:
        """Go on after a whole match, whose end may begin another."""
        self.matched = self._fallbacks[self.matched]
