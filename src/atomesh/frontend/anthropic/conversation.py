"""Messages of content blocks as the messages of a chat."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from atomesh.errors import InvalidRequestError
from atomesh.frontend.anthropic.billing_line import without_billing_line
from atomesh.frontend.anthropic.messages_request import ContentBlock, InputMessage
from atomesh.frontend.openai.chat_request import ChatMessage

ROLES = ("user", "assistant", "system")
_TEXT_ONLY = frozenset({"text"})
_OF_ROLE = {
    "user": frozenset({"text", "tool_result"}),
    "assistant": frozenset({"text", "tool_use", "thinking", "redacted_thinking"}),
    "system": _TEXT_ONLY,
}


@dataclass(frozen=True, slots=True)
class _Placed:
    """`place` is the block's JSON path."""

    block: ContentBlock
    place: str


@dataclass(frozen=True, slots=True)
class _Turn:
    """Consecutive messages of one role."""

    role: str
    blocks: list[_Placed]


def system_message(system: str | Sequence[ContentBlock] | None) -> list[ChatMessage]:
    """The one message, or none where there is nothing in it."""
    if system is None:
        return []
    texts = [system] if isinstance(system, str) else _texts(_placed(system, "system", _TEXT_ONLY))
    if texts:
        texts[0] = without_billing_line(texts[0])
    text = "\n".join(filter(None, texts))
    return [ChatMessage("system", text)] if text else []


def chat_messages(messages: Sequence[InputMessage]) -> list[ChatMessage]:
    """Consecutive messages of one role are one; results of tools become messages of their own.

    Raises InvalidRequestError with the place of a role or block that cannot be served.
    """
    chat: list[ChatMessage] = []
    for turn in _turns(messages):
        chat += _user_messages(turn.blocks) if turn.role == "user" else [_message(turn)]
    return chat


def continues(messages: Sequence[InputMessage]) -> bool:
    """Whether the last message is the beginning of the answer."""
    if not messages or messages[-1].role != "assistant":
        return False
    content = messages[-1].content
    if not isinstance(content, str) and any(block.type == "tool_use" for block in content):
        place = f"messages[{len(messages) - 1}]"
        raise InvalidRequestError(
            f"{place} uses a tool, and no tool_result comes after it; send the result in a user message",
            param=place,
        )
    return True


def _turns(messages: Sequence[InputMessage]) -> list[_Turn]:
    turns: list[_Turn] = []
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        if message.role not in ROLES:
            raise InvalidRequestError(
                f"{place}.role is {message.role[:40]!r}; it must be one of {', '.join(ROLES)}",
                param=f"{place}.role",
            )
        content = message.content
        given = [ContentBlock("text", content)] if isinstance(content, str) else content
        blocks = _placed(given, f"{place}.content", _OF_ROLE[message.role])
        if turns and turns[-1].role == message.role:
            turns[-1].blocks.extend(blocks)
        else:
            turns.append(_Turn(message.role, blocks))
    return turns


def _placed(blocks: Sequence[ContentBlock], place: str, allowed: frozenset[str]) -> list[_Placed]:
    placed = [_Placed(block, f"{place}[{index}]") for index, block in enumerate(blocks)]
    for one in placed:
        if one.block.type not in allowed:
            raise InvalidRequestError(
                f"{one.place} is a block of type {one.block.type[:40]!r}; what is read here is "
                f"{', '.join(sorted(allowed))}: leave it out",
                param=one.place,
            )
    return placed


def _user_messages(blocks: Sequence[_Placed]) -> Iterator[ChatMessage]:
    texts: list[_Placed] = []
    for one in blocks:
        if one.block.type == "text":
            texts.append(one)
            continue
        if texts:
            yield ChatMessage("user", "\n".join(_texts(texts)))
            texts = []
        yield _tool_message(one)
    if texts or not blocks:
        yield ChatMessage("user", "\n".join(_texts(texts)))


def _tool_message(placed: _Placed) -> ChatMessage:
    """No chat template has a word for a result that is an error; where the text does not say so, we do."""
    block = placed.block
    if block.tool_use_id is None:
        raise _missing(placed, "tool_use_id")
    content = block.content
    if isinstance(content, list):
        content = "\n".join(_texts(_placed(content, f"{placed.place}.content", _TEXT_ONLY)))
    elif isinstance(content, dict):
        raise InvalidRequestError(
            f"{placed.place}.content is an object; send a string or a list of text blocks",
            param=f"{placed.place}.content",
        )
    text = content or ""
    if block.is_error and not text.lower().startswith("error"):
        text = f"Error: {text}" if text else "Error"
    return ChatMessage("tool", text, tool_call_id=block.tool_use_id)


def _message(turn: _Turn) -> ChatMessage:
    """Of the assistant or the system. What was thought and encrypted elsewhere cannot be read, and is left
    out."""
    thoughts = [one.block.thinking or "" for one in turn.blocks if one.block.type == "thinking"]
    calls = [_call(one) for one in turn.blocks if one.block.type == "tool_use"]
    return ChatMessage(
        turn.role,
        "\n".join(_texts([one for one in turn.blocks if one.block.type == "text"])),
        tool_calls=calls or None,
        reasoning_content="\n".join(filter(None, thoughts)) or None,
    )


def _call(placed: _Placed) -> dict[str, object]:
    block = placed.block
    for field in ("id", "name", "input"):
        if getattr(block, field) is None:
            raise _missing(placed, field)
    try:
        arguments = msgspec.json.encode(block.input).decode()
    except RecursionError:
        place = f"{placed.place}.input"
        raise InvalidRequestError(f"{place} is nested too deeply; send a flatter one", param=place) from None
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _texts(blocks: Sequence[_Placed]) -> list[str]:
    texts = []
    for one in blocks:
        if one.block.text is None:
            raise _missing(one, "text")
        texts.append(one.block.text)
    return texts


def _missing(placed: _Placed, field: str) -> InvalidRequestError:
    place = f"{placed.place}.{field}"
    return InvalidRequestError(f"{place} is missing; a {placed.block.type} block needs it", param=place)
