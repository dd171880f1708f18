"""The input's items: checked, and in the one shape in which they are kept, listed and replayed."""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atomesh.errors import InvalidRequestError
from atomesh.frontend.openai.responses.request import ContentPart, InputItem

Item = dict[str, Any]
Mint = Callable[[str], str]  # a new id, from its prefix

_ROLES = ("user", "assistant", "system", "developer")
_MAX_ID = 128
_MAX_REFERENCES = 1000
_REFERENCE = "item_reference"
_SEAL = "atomesh-1."


@dataclass(frozen=True, slots=True)
class Remembered:
    """The `conversation` that a request continues, and the kept items that its input names, by their ids."""

    conversation: Sequence[Item] = ()
    named: Mapping[str, Item] = field(default_factory=dict)


NOTHING_BEFORE = Remembered()


def named_items(given: str | Sequence[InputItem] | None) -> list[str]:
    """The ids of kept items that stand in the input for the items themselves. Raises InvalidRequestError."""
    items = [] if given is None or isinstance(given, str) else given
    names = [item.id for item in items if item.id and _kind(item) == _REFERENCE]
    if len(names) > _MAX_REFERENCES:
        raise InvalidRequestError(
            f"input has {len(names)} references to items; the limit is {_MAX_REFERENCES}: send the items, or "
            "previous_response_id",
            param="input",
        )
    return names


def parse_input(
    given: str | Sequence[InputItem] | None, mint: Mint, before: Remembered = NOTHING_BEFORE
) -> list[Item]:
    """Items as the API lists them, each with an id. Raises InvalidRequestError with the place."""
    if given is None:
        return []
    if isinstance(given, str):
        return [_message_item(mint("msg_"), "user", [_text_part("user", given)])]
    items = [_parse_item(item, f"input[{index}]", mint, before) for index, item in enumerate(given)]
    _check_calls(before.conversation, items)
    return items


def _kind(item: InputItem) -> str:
    if item.type is not None:
        return item.type
    return _REFERENCE if item.role is None and item.id is not None else "message"


def _parse_item(item: InputItem, place: str, mint: Mint, before: Remembered) -> Item:
    if item.id is not None and not 0 < len(item.id) <= _MAX_ID:
        raise InvalidRequestError(
            f"{place}.id has {len(item.id)} characters; it must have between 1 and {_MAX_ID}",
            param=f"{place}.id",
        )
    kind = _kind(item)
    if kind == _REFERENCE:
        return _named_item(item, place, before)
    parse = _PARSERS.get(kind)
    if parse is None:
        raise InvalidRequestError(
            f"{place}.type is {kind[:40]!r}; items may be {', '.join(_PARSERS)} and {_REFERENCE}: send "
            "what it stands for as one of these",
            param=f"{place}.type",
        )
    return parse(item, place, mint)


def _named_item(item: InputItem, place: str, before: Remembered) -> Item:
    name: str = _required(item.id, f"{place}.id")
    found = before.named.get(name)
    if found is None:
        raise InvalidRequestError(
            f"{place}.id: there is no item {name[:80]!r}, or its response is no longer kept; send the "
            "item itself",
            param=f"{place}.id",
        )
    return found


def _parse_message(item: InputItem, place: str, mint: Mint) -> Item:
    if item.role not in _ROLES:
        told = "missing" if item.role is None else repr(item.role[:40])
        raise InvalidRequestError(
            f"{place}.role is {told}; it must be one of {', '.join(_ROLES)}", param=f"{place}.role"
        )
    content = _required(item.content, f"{place}.content")
    return _message_item(
        item.id or mint("msg_"), item.role, _parse_parts(content, item.role, f"{place}.content")
    )


def _parse_call(item: InputItem, place: str, mint: Mint) -> Item:
    return {
        "id": item.id or mint("fc_"),
        "type": "function_call",
        "status": "completed",
        "call_id": _required(item.call_id, f"{place}.call_id"),
        "name": _required(item.name, f"{place}.name"),
        "arguments": _required(item.arguments, f"{place}.arguments"),
    }


def _parse_call_output(item: InputItem, place: str, mint: Mint) -> Item:
    output = _required(item.output, f"{place}.output")
    return {
        "id": item.id or mint("fco_"),
        "type": "function_call_output",
        "status": "completed",
        "call_id": _required(item.call_id, f"{place}.call_id"),
        "output": output if isinstance(output, str) else _parse_parts(output, "tool", f"{place}.output"),
    }


def _parse_reasoning(item: InputItem, place: str, mint: Mint) -> Item:
    parts = [] if item.content is None or isinstance(item.content, str) else item.content
    texts = [item.content] if isinstance(item.content, str) else [part.text or "" for part in parts]
    if not texts and item.encrypted_content:
        texts = [unseal(item.encrypted_content, f"{place}.encrypted_content")]
    return {
        "id": item.id or mint("rs_"),
        "type": "reasoning",
        "status": "completed",
        "summary": [{"type": "summary_text", "text": part.text or ""} for part in item.summary or ()],
        "content": [{"type": "reasoning_text", "text": text} for text in texts],
    }


_PARSERS: Mapping[str, Callable[[InputItem, str, Mint], Item]] = {
    "message": _parse_message,
    "function_call": _parse_call,
    "function_call_output": _parse_call_output,
    "reasoning": _parse_reasoning,
}


def _required(value: Any, place: str) -> Any:
    if value is None:
        raise InvalidRequestError(f"{place} is missing; send it", param=place)
    return value


def _parse_parts(content: str | Sequence[ContentPart], role: str, place: str) -> list[Item]:
    if isinstance(content, str):
        return [_text_part(role, content)]
    return [_parse_part(part, role, f"{place}[{index}]") for index, part in enumerate(content)]


def _parse_part(part: ContentPart, role: str, place: str) -> Item:
    if part.type in ("input_text", "output_text", "text") and part.text is not None:
        return _text_part(role, part.text)
    if part.type == "refusal" and part.refusal is not None and role == "assistant":
        return {"type": "refusal", "refusal": part.refusal}
    raise InvalidRequestError(
        f"{place} is a part of type {part.type[:40]!r}; this model reads only input_text and output_text "
        "parts with their text, and an assistant's refusal parts",
        param=place,
    )


def _text_part(role: str, text: str) -> Item:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def _message_item(item_id: str, role: str, content: list[Item]) -> Item:
    return {"id": item_id, "type": "message", "status": "completed", "role": role, "content": content}


def seal(reasoning: str) -> str:
    """`encrypted_content` of a reasoning item: its text in a form that clients hand back unread.

    It keeps nothing secret: the same client has the text in `content`.
    """
    return _SEAL + base64.urlsafe_b64encode(reasoning.encode()).decode()


def unseal(sealed: str, place: str) -> str:
    """Raises InvalidRequestError for what `seal` has not made."""
    try:
        if not sealed.startswith(_SEAL):
            raise ValueError(sealed[:0])
        return base64.b64decode(sealed.removeprefix(_SEAL).encode(), b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        raise InvalidRequestError(
            f"{place} was not made by this server; leave the reasoning item out", param=place
        ) from None


def _check_calls(before: Sequence[Item], items: Sequence[Item]) -> None:
    """Each output among `items` answers a call that came earlier. Raises InvalidRequestError."""
    known = {item["call_id"] for item in before if item["type"] == "function_call"}
    for index, item in enumerate(items):
        if item["type"] == "function_call":
            known.add(item["call_id"])
        elif item["type"] == "function_call_output" and item["call_id"] not in known:
            place = f"input[{index}].call_id"
            raise InvalidRequestError(
                f"{place}: there is no function_call with the call_id {item['call_id'][:80]!r} before it; "
                "send the call too, or previous_response_id",
                param=place,
            )
