"""An answer's parts as the content blocks of an answer that is not streamed."""

from collections.abc import Iterable
from typing import Any

import msgspec

from atomesh.frontend.answer.last_call import is_object
from atomesh.frontend.answer.parts import (
    ContentDelta,
    Part,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from atomesh.frontend.anthropic.signature import sign


def whole_blocks(parts: Iterable[Part], *, shows_thinking: bool = True) -> list[dict[str, Any]]:
    """The input of a call is to the letter what the model wrote, as it is streamed.

    That of a call that was cut off in it is empty, which `stop_reason` explains.
    """
    blocks: list[dict[str, Any]] = []
    for part in parts:
        match part:
            case ContentDelta(text):
                _add(blocks, "text", "text", text)
            case ReasoningDelta(text):
                _add(blocks, "thinking", "thinking", text)
            case ToolCallStart(call_id=call_id, name=name):
                blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": ""})
            case ToolArgumentsDelta(text=text):
                _add(blocks, "tool_use", "input", text)
    for block in blocks:
        _complete(block, shows_thinking=shows_thinking)
    return blocks


def _add(blocks: list[dict[str, Any]], kind: str, field: str, text: str) -> None:
    if not text:
        return
    if not blocks or blocks[-1]["type"] != kind:
        blocks.append({"type": kind, field: ""})
    blocks[-1][field] += text


def _complete(block: dict[str, Any], *, shows_thinking: bool) -> None:
    if block["type"] == "tool_use":
        text = block["input"]
        block["input"] = msgspec.Raw(text.encode()) if is_object(text) else {}
    if block["type"] == "thinking":
        block["signature"] = sign(block["thinking"])
        block["thinking"] = block["thinking"] if shows_thinking else ""
