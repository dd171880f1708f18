"""What the engine is told of an answer's reasoning, by dialect, prompt, request and constraint."""

from typing import Any

import pytest

from atomesh.errors import InvalidRequestError
from atomesh.frontend.answer.answer_parser import PlainAnswer
from atomesh.frontend.reasoning.dialect import AnswerStart, Opening
from atomesh.frontend.reasoning.dialects import DIALECTS
from atomesh.frontend.reasoning.reasoning_plan import NO_REASONING, Constraint, ReasoningPlan, plan_reasoning
from atomesh.frontend.reasoning.reasoning_request import ReasoningRequest
from atomesh.protocol.reasoning import ReasoningSpec

MARKS = ("<think>", "</think>", "[THINK]", "[/THINK]", "<|start|>", "<|channel|>", "<|message|>", "<|end|>")
IDS = {mark: 1000 + index for index, mark in enumerate(MARKS)}
THINK, END_THINK, MISTRAL, END_MISTRAL, START, CHANNEL, MESSAGE, END = IDS.values()
FREE, ANSWER, CALL = Constraint.NONE, Constraint.ANSWER, Constraint.CALL


class MarkTokenizer:
    """Each of the marks is one token, every other character is one too."""

    special_tokens = IDS

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        ids = []
        while text:
            mark = next((mark for mark in MARKS if text.startswith(mark)), text[0])
            ids.append(IDS.get(mark, ord(mark[0])))
            text = text[len(mark) :]
        return ids


def plan(
    name: str,
    prompt_end: str,
    constraint: Constraint = FREE,
    tools: tuple[str, ...] = (),
    **asked: Any,
) -> ReasoningPlan:
    dialect = DIALECTS[name]
    opening = dialect.find_opening(prompt_end, is_continued=False)
    start = AnswerStart(prompt_end, opening, tools, lambda called, index: f"{called}{index}")
    tokenizer: Any = MarkTokenizer()
    return plan_reasoning(dialect, ReasoningRequest(**asked), start, tokenizer, constraint)


def letters(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


ANALYSIS = (CHANNEL, *letters("analysis"), MESSAGE)
FINAL = (START, *letters("assistant"), CHANNEL, *letters("final"), MESSAGE)


@pytest.mark.parametrize(
    ("made", "spec"),
    [
        (plan("think", "a"), None),
        (plan("think", "a", max_tokens=3), ReasoningSpec(start=(THINK,), end=(END_THINK,), max_tokens=3)),
        (
            plan("mistral", "[THINK]", max_tokens=0),
            ReasoningSpec(start=(MISTRAL,), end=(END_MISTRAL,), begins_inside=True, max_tokens=0),
        ),
        (plan("think", "a", ANSWER), ReasoningSpec(start=(THINK,), end=(END_THINK,), is_required=True)),
        (plan("think", "a", CALL), ReasoningSpec(start=(THINK,), end=(END_THINK,), is_required=True)),
        (plan("think", "a", ANSWER, is_wanted=False, max_tokens=0), None),
        (
            plan("think", "<think>", ANSWER, is_wanted=False, max_tokens=0),
            ReasoningSpec(
                start=(THINK,), end=(END_THINK,), begins_inside=True, is_required=True, max_tokens=0
            ),
        ),
        (plan("granite", "a", ANSWER), None),
        (
            plan("harmony", "a", max_tokens=3),
            ReasoningSpec(start=ANALYSIS, end=(END,), then=FINAL, max_tokens=3),
        ),
        (
            plan("harmony", "a", tools=("f",), max_tokens=3),
            ReasoningSpec(start=ANALYSIS, end=(END,), max_tokens=3),
        ),
        (
            plan("harmony", "a", ANSWER, is_wanted=False, max_tokens=0),
            ReasoningSpec(start=ANALYSIS, end=(END,), then=FINAL, is_required=True, max_tokens=0),
        ),
        (plan("harmony", "a", CALL), ReasoningSpec(start=ANALYSIS, end=(END,), is_required=True)),
    ],
)
def test_the_engine_is_told(made: ReasoningPlan, spec: ReasoningSpec | None) -> None:
    assert made.spec == spec
    is_required = spec is not None and spec.is_required
    assert made.before_answer == ((*spec.end, *spec.then) if spec is not None and is_required else ())


def test_what_the_prompt_has_ended_is_none_of_the_parsers_business() -> None:
    assert plan("think", "<think>\n\n</think>\n\n", ANSWER, max_tokens=3) is NO_REASONING
    assert NO_REASONING.around(PlainAnswer) is PlainAnswer


def test_an_end_in_words_is_not_where_a_grammar_can_begin_for_certain() -> None:
    with pytest.raises(InvalidRequestError, match="ends with words, not with one token"):
        plan("granite", "a", ANSWER, is_wanted=True)


def test_the_parser_sees_the_marks_that_are_special_tokens() -> None:
    assert plan("think", "a").shown_tokens == {THINK, END_THINK}
    assert plan("granite", "a").shown_tokens == frozenset()
    assert plan("harmony", "a").shown_tokens == {START, CHANNEL, MESSAGE, END}


def test_a_continued_harmony_message_has_no_reasoning_to_limit() -> None:
    dialect = DIALECTS["harmony"]
    start = AnswerStart(
        "<|start|>assistant<|channel|>final<|message|>So", Opening.CLOSED, (), lambda _name, index: str(index)
    )
    tokenizer: Any = MarkTokenizer()
    made = plan_reasoning(dialect, ReasoningRequest(max_tokens=3), start, tokenizer, FREE)
    assert made.spec is None
    parts = made.around(PlainAnswer)().feed(" it is", 1, is_final=True)
    assert [part.text for part in parts if hasattr(part, "text")] == [" it is"]
