"""How far one sequence is in its grammar: a function of its output tokens, and of nothing else.

So it is right after a fork, a preemption, a hand-off, or at another worker, whoever sampled the tokens.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from atomesh.engine.structured_output.prepared import PreparedGrammar

if TYPE_CHECKING:
    from llguidance import LLMatcher


class GrammarState:
    def __init__(self, grammar: PreparedGrammar) -> None:
        self.grammar = grammar
        self._seen: list[int] = []
        self._matcher = grammar.matcher.deep_copy()
        self._has_begun = not grammar.begins_after

    @property
    def matcher(self) -> "LLMatcher | None":
        """None where the grammar has not begun: every token may follow."""
        return self._matcher if self._has_begun else None

    def follow(self, output_token_ids: Sequence[int]) -> None:
        """Stand after just these tokens, whatever came before."""
        known = len(self._seen)
        if self._seen != list(output_token_ids[:known]):
            self._restart()
            known = 0
        for token_id in output_token_ids[known:]:
            self.advance(token_id)

    def advance(self, token_id: int) -> bool:
        """One more token; whether the grammar ends with it, so that none may follow."""
        self._seen.append(token_id)
        if not self._has_begun:
            self._has_begun = self._ends_with_beginning()
            return False
        return self._matcher.consume_token(token_id) and self._matcher.is_stopped()

    def would_end_with(self, token_id: int) -> bool:
        """As `advance`, without moving."""
        if not self._has_begun:
            return False
        probe = self._matcher.deep_copy()
        return probe.consume_token(token_id) and probe.is_stopped()

    def _restart(self) -> None:
        self._seen = []
        self._matcher = self.grammar.matcher.deep_copy()
        self._has_begun = not self.grammar.begins_after

    def _ends_with_beginning(self) -> bool:
        mark = self.grammar.begins_after
        return tuple(self._seen[-len(mark) :]) == mark
