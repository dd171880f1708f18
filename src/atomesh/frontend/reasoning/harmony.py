"""GPT-OSS: reasoning, answer and calls are messages of one format, which one parser reads."""

from collections.abc import Callable, Mapping
from typing import Any

from atomesh.frontend.answer.answer_parser import AnswerParser
from atomesh.frontend.reasoning.dialect import AnswerStart, Opening
from atomesh.frontend.reasoning.harmony_header import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START
from atomesh.frontend.reasoning.harmony_parser import HarmonyParser
from atomesh.protocol.reasoning import ReasoningSpec

_ROLE = "assistant"
_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high"}  # GPT-OSS knows low, medium and high


class HarmonyDialect:
    """`inner` parsers have nothing to read: what is for the reader has no marks in it."""

    name = "harmony"
    shown_tokens = (START, END, CALL, RETURN, CHANNEL, CONSTRAIN, MESSAGE)
    reasons_unasked = True

    def is_in(self, template: str) -> bool:
        return CHANNEL in template and MESSAGE in template

    def find_opening(self, prompt_end: str, *, is_continued: bool) -> Opening:
        return Opening.CLOSED if is_continued else Opening.OPEN

    def make_parser(self, start: AnswerStart, inner: AnswerParser) -> AnswerParser:
        message = start.prompt_end.rpartition(START)[2]
        is_begun = message.startswith(_ROLE) and END not in message
        return HarmonyParser(start.tools, start.mint_id, message.removeprefix(_ROLE) if is_begun else "")

    def limits(self, encode: Callable[[str], tuple[int, ...]]) -> ReasoningSpec:
        return ReasoningSpec(start=encode(f"{CHANNEL}analysis{MESSAGE}"), end=encode(END))

    def answer_opening(self) -> str:
        return f"{START}{_ROLE}{CHANNEL}final{MESSAGE}"

    def effort_variables(self, effort: str) -> dict[str, Any]:
        return {"reasoning_effort": _EFFORTS.get(effort, effort)}

    def adapt_message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The template calls it `thinking`, and a message with calls has that or content, not both."""
        reasoning = message.get("reasoning_content")
        if not reasoning:
            return message
        adapted = {key: value for key, value in message.items() if key != "reasoning_content"}
        content = adapted.get("content")
        if adapted.get("tool_calls") and isinstance(content, str) and content:
            return {**adapted, "content": "", "thinking": f"{reasoning}\n{content}"}
        return {**adapted, "thinking": reasoning}
