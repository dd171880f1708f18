"""A grammar that is ready to be obeyed."""

from typing import TYPE_CHECKING

from atomesh.protocol.grammar import GrammarSpec

if TYPE_CHECKING:
    from llguidance import LLMatcher


class PreparedGrammar(GrammarSpec, frozen=True, kw_only=True, eq=False):
    """In a request inside the engine, in its spec's place: it lasts as long as the request does.

    `matcher` stands at the grammar's beginning; it is copied, and never moved itself. Its masks have
    `mask_words` words of 32 bits. `eos_ids` are the model's.
    """

    matcher: "LLMatcher"
    mask_words: int
    eos_ids: tuple[int, ...]
