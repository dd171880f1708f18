"""What an answer is made of, between the model's text and an API's JSON."""

import msgspec


class ContentDelta(msgspec.Struct, frozen=True):
    """Text for the reader."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    """Text that the model wrote for itself, before or between what it says."""

    text: str


class ToolCallStart(msgspec.Struct, frozen=True):
    """The answer's call number `index`, from 0; its arguments follow before the next one starts."""

    index: int
    call_id: str
    name: str


class ToolArgumentsDelta(msgspec.Struct, frozen=True):
    """A piece of the JSON object that call `index` is given; the joined pieces parse."""

    index: int
    text: str


Part = ContentDelta | ReasoningDelta | ToolCallStart | ToolArgumentsDelta
