"""What a message of GPT-OSS's harmony format is, by what stands before its text.

https://cookbook.openai.com/articles/openai-harmony: `<|start|>role to=recipient<|channel|>name
<|constrain|>type<|message|>`, the recipient before or after the channel.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto

MESSAGE, CHANNEL = "<|message|>", "<|channel|>"
START, END, CALL, RETURN = "<|start|>", "<|end|>", "<|call|>", "<|return|>"
ENDS = (END, CALL, RETURN, START)
CONSTRAIN = "<|constrain|>"
FUNCTIONS = "functions."

_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_FIRST = re.compile(
    r"\s*(?:a|as|ass|assi|assis|assist|assista|assistan|assistant)?\s*(?:t|to|to=[^\s<]*)?\s*(?:<(?:\|.*)?)?",
    re.S,
)


class Kind(Enum):
    CONTENT = auto()
    REASONING = auto()
    CALL = auto()


@dataclass(frozen=True, slots=True)
class MessageKind:
    """`name` is the function's that is called."""

    kind: Kind
    name: str = ""


CONTENT = MessageKind(Kind.CONTENT)
REASONING = MessageKind(Kind.REASONING)


def read_header(header: str) -> MessageKind:
    """Of all that stands before the message's text. What is said to anything but a function is reasoning."""
    recipient = _RECIPIENT.search(header)
    if recipient is not None:
        to = recipient[1]
        is_call = to.startswith(FUNCTIONS) and to != FUNCTIONS
        return MessageKind(Kind.CALL, to.removeprefix(FUNCTIONS)) if is_call else REASONING
    channel = _CHANNEL.search(header)
    return REASONING if channel is not None and channel[1] == "analysis" else CONTENT


def may_begin_header(text: str) -> bool:
    """Whether an answer that begins so may be a message's header; else it is plain text."""
    return _FIRST.fullmatch(text) is not None
