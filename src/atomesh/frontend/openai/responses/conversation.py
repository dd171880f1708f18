"""A conversation's items as the messages of a chat."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from atomesh.frontend.openai.responses.items import Item

Message = dict[str, Any]


@dataclass(slots=True)
class _Turn:
    """What the assistant did at a stretch: reasoning, then text, then calls, in one message of a chat."""

    reasoning: list[str] = field(default_factory=list)
    content: str | list[Item] | None = None
    calls: list[Message] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.reasoning and self.content is None and not self.calls

    @property
    def has_spoken(self) -> bool:
        return self.content is not None or bool(self.calls)

    def message(self) -> Message:
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        elif self.content is None:
            message["content"] = ""
        return message


def to_messages(items: Iterable[Item]) -> list[Message]:
    """One message an item, but for what the assistant did at a stretch, which is one together."""
    messages: list[Message] = []
    turn = _Turn()
    for item in items:
        if _is_assistants(item):
            if not turn.is_empty and _begins_turn(item, turn):
                messages.append(turn.message())
                turn = _Turn()
            _add(item, turn)
            continue
        if not turn.is_empty:
            messages.append(turn.message())
            turn = _Turn()
        messages.append(_other_message(item))
    return messages if turn.is_empty else [*messages, turn.message()]


def _is_assistants(item: Item) -> bool:
    return item["type"] in ("function_call", "reasoning") or item.get("role") == "assistant"


def _begins_turn(item: Item, turn: _Turn) -> bool:
    return item["type"] != "function_call" and turn.has_spoken


def _add(item: Item, turn: _Turn) -> None:
    if item["type"] == "message":
        turn.content = _chat_content(item["content"])
    elif item["type"] == "reasoning":
        turn.reasoning += [part["text"] for part in item["content"]]
    else:
        function = {"name": item["name"], "arguments": item["arguments"]}
        turn.calls.append({"id": item["call_id"], "type": "function", "function": function})


def _other_message(item: Item) -> Message:
    if item["type"] == "message":
        return {"role": item["role"], "content": _chat_content(item["content"])}
    output = item["output"]
    content = output if isinstance(output, str) else _chat_content(output)
    return {"role": "tool", "tool_call_id": item["call_id"], "content": content}


def _chat_content(parts: Sequence[Item]) -> str | list[Item]:
    if len(parts) == 1 and "text" in parts[0]:
        text: str = parts[0]["text"]
        return text
    return [
        {"type": "refusal", "refusal": part["refusal"]}
        if part["type"] == "refusal"
        else {"type": "text", "text": part["text"]}
        for part in parts
    ]


def without_oldest(messages: Sequence[Message], count: int) -> list[Message]:
    """Less the `count` oldest that are no instructions, and less the outputs of calls that went with them."""
    droppable = [
        index for index, message in enumerate(messages) if message["role"] not in ("system", "developer")
    ]
    dropped = set(droppable[:count])
    for index in droppable[count:]:
        if messages[index]["role"] != "tool":
            break
        dropped.add(index)
    return [message for index, message in enumerate(messages) if index not in dropped]


def count_droppable(messages: Sequence[Message]) -> int:
    """How many `without_oldest` can take away so that something is left to answer."""
    return sum(message["role"] not in ("system", "developer") for message in messages) - 1
