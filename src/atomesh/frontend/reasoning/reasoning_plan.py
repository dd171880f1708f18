"""How one answer's reasoning is read, and what the engine is told of it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from msgspec.structs import replace

from atomesh.errors import InvalidRequestError
from atomesh.frontend.answer.answer_parser import AnswerParser
from atomesh.frontend.reasoning.dialect import AnswerStart, Opening, ReasoningDialect
from atomesh.frontend.reasoning.hidden_reasoning import HiddenReasoning
from atomesh.frontend.reasoning.reasoning_request import ReasoningRequest
from atomesh.protocol.reasoning import ReasoningSpec

if TYPE_CHECKING:
    from atomesh.frontend.text.tokenizer import Tokenizer

MakeParser = Callable[[], AnswerParser]
Encode = Callable[[str], tuple[int, ...]]


class Constraint(Enum):
    """What a grammar holds an answer to."""

    NONE = auto()
    ANSWER = auto()  # to what the reader gets
    CALL = auto()  # to tool calls, or to them or something else, marks and all


@dataclass(frozen=True, slots=True)
class ReasoningPlan:
    """`spec` is for the engine; a grammar holds after the token ids `before_answer`.

    `shown_tokens` are special tokens that the parser must see.
    """

    spec: ReasoningSpec | None = None
    before_answer: tuple[int, ...] = ()
    shown_tokens: frozenset[int] = frozenset()
    around: Callable[[MakeParser], MakeParser] = lambda make_inner: make_inner
    """From what makes the parser of one choice's words for the reader to what makes that of all its words."""


NO_REASONING = ReasoningPlan()


def plan_reasoning(
    dialect: ReasoningDialect,
    asked: ReasoningRequest,
    start: AnswerStart,
    tokenizer: "Tokenizer",
    constraint: Constraint,
) -> ReasoningPlan:
    """Raises InvalidRequestError where a grammar could not begin for certain where the reasoning ends."""

    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False)) if text else ()

    def around(make_inner: MakeParser) -> MakeParser:
        if asked.is_hidden:
            return lambda: HiddenReasoning(dialect.make_parser(start, make_inner()))
        return lambda: dialect.make_parser(start, make_inner())

    has_ended = start.opening is Opening.CLOSED
    if has_ended and not dialect.answer_opening():
        return NO_REASONING
    spec = None if has_ended else _limits(dialect, asked, start, encode, constraint)
    before = (*spec.end, *spec.then) if spec is not None and spec.is_required else ()
    special = tokenizer.special_tokens
    shown = frozenset(special[text] for text in dialect.shown_tokens if text in special)
    return ReasoningPlan(spec, before, shown, around)


def _limits(
    dialect: ReasoningDialect,
    asked: ReasoningRequest,
    start: AnswerStart,
    encode: Encode,
    constraint: Constraint,
) -> ReasoningSpec | None:
    is_free = constraint is Constraint.NONE
    if asked.max_tokens is None if is_free else not _reasons(dialect, asked, start):
        return None
    limits = dialect.limits(encode)
    if not is_free and len(limits.end) > 1:
        raise InvalidRequestError(
            "this model's reasoning ends with words, not with one token, so that what its answer is held to "
            "could not begin there for certain; send reasoning_effort 'none', or ask for a free answer",
            param="reasoning_effort",
        )
    then = "" if constraint is Constraint.CALL or (is_free and start.tools) else dialect.answer_opening()
    return replace(
        limits,
        then=encode(then),
        begins_inside=start.opening is Opening.INSIDE,
        is_required=not is_free,
        max_tokens=asked.max_tokens,
    )


def _reasons(dialect: ReasoningDialect, asked: ReasoningRequest, start: AnswerStart) -> bool:
    """Whether an answer that is held to something has reasoning before that."""
    if start.opening is Opening.INSIDE or dialect.answer_opening():
        return True
    return dialect.reasons_unasked if asked.is_wanted is None else asked.is_wanted
