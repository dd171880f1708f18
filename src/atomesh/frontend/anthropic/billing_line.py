"""The line about billing that some agents put before their system prompt, with hashes of each request in it.

As it stands at the very beginning of the prompt, no prefix of two requests would match. It looks like
`x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;`, in a block of its own or
before the rest of a text, and says nothing to a model.
"""

import re
from typing import Any

import msgspec

NAME = "x-anthropic-billing-header:"
MAX_CHARS = 512
_PAIR = r"[\w.-]+=[^;\s]*"
_LINE = re.compile(rf"{NAME}[ \t]*{_PAIR}(?:;[ \t]*{_PAIR})*;?[ \t]*\r?", re.ASCII)


def without_billing_line(system: str) -> str:
    """The prompt without such a first line and the empty lines after it; any other as it is."""
    if not system.startswith(NAME):
        return system
    line, _, rest = system.partition("\n")
    if len(line) > MAX_CHARS or not _LINE.fullmatch(line):
        return system
    return rest.lstrip("\r\n")


def stable_system(system: msgspec.Raw) -> msgspec.Raw:
    """The same for the JSON of a request's `system`, text or blocks; what is neither, as it is."""
    if NAME.encode() not in bytes(system):
        return system
    try:
        value = msgspec.json.decode(system, type=str | list[dict[str, Any]])
    except (msgspec.DecodeError, RecursionError):
        return system
    if isinstance(value, str):
        return msgspec.Raw(msgspec.json.encode(without_billing_line(value)))
    text = value[0].get("text") if value else None
    if isinstance(text, str):
        left = without_billing_line(text)
        value = [{**value[0], "text": left}, *value[1:]] if left else value[1:]
    return msgspec.Raw(msgspec.json.encode(value))
