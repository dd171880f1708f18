"""How one request's tools are told to the model, its calls read, and it held to calling."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atomesh.frontend.answer.answer_parser import AnswerParser, PlainAnswer
from atomesh.frontend.tool_calls.dialect import Dialect
from atomesh.frontend.tool_calls.lark_rules import calls_grammar
from atomesh.frontend.tool_calls.tool_call_parser import ToolCallParser
from atomesh.frontend.tool_calls.tools import ToolUse
from atomesh.protocol.grammar import GrammarSpec

if TYPE_CHECKING:
    from atomesh.frontend.text.tokenizer import Tokenizer

_NOISE_BYTES = 12


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """`make_parser` makes what reads one choice's text. `grammar` is None where the model need not call.

    `shown_tokens` are special tokens that the parser must see. `mint_id` makes an id of a call's name and its
    index.
    """

    use: ToolUse
    make_parser: Callable[[], AnswerParser]
    mint_id: Callable[[str, int], str]
    grammar: GrammarSpec | None = None
    shown_tokens: frozenset[int] = frozenset()


def plan_tools(
    dialect: Dialect, use: ToolUse, tokenizer: "Tokenizer", *, hides_special_tokens: bool
) -> ToolPlan:
    """Raises InvalidRequestError where calls must be made that the dialect cannot be held to."""

    def mint_id(name: str, index: int) -> str:
        return dialect.mint_id(name, index, secrets.token_bytes(_NOISE_BYTES))

    if not use.callable:
        return ToolPlan(use, PlainAnswer, mint_id)
    special: Mapping[str, int] = tokenizer.special_tokens
    marks = [mark for mark in dialect.marks if mark in special]

    def make_parser() -> AnswerParser:
        return ToolCallParser(
            dialect,
            use.callable,
            mint_id,
            max_calls=None if use.is_parallel else 1,
            hidden=marks if hides_special_tokens else (),
            must_call=use.need == "required",
        )

    grammar = None
    if use.need == "required":
        grammar = GrammarSpec(kind="lark", source=calls_grammar(dialect, use, special))
    return ToolPlan(use, make_parser, mint_id, grammar, frozenset(special[mark] for mark in marks))
