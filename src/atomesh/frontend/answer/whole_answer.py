"""One choice's parts, put together: what an answer that is not streamed says."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from atomesh.frontend.answer.answer_parser import AnswerParser
from atomesh.frontend.answer.parts import (
    ContentDelta,
    Part,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)


@dataclass(frozen=True, slots=True)
class WholeCall:
    """`arguments` is the text of a JSON object."""

    call_id: str
    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    content: str = ""
    reasoning: str = ""
    calls: list[WholeCall] = field(default_factory=list)


def join_parts(parts: Iterable[Part]) -> WholeAnswer:
    """Of one choice, in their order."""
    content: list[str] = []
    reasoning: list[str] = []
    starts: list[ToolCallStart] = []
    arguments: list[list[str]] = []
    for part in parts:
        match part:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallStart():
                starts.append(part)
                arguments.append([])
            case ToolArgumentsDelta(index, text):
                arguments[index].append(text)
    calls = [
        WholeCall(start.call_id, start.name, "".join(given))
        for start, given in zip(starts, arguments, strict=True)
    ]
    return WholeAnswer("".join(content), "".join(reasoning), calls)


def parse_whole(parser: AnswerParser, pieces: Iterable[tuple[str, int]]) -> WholeAnswer:
    """Of all the pieces of a choice: text and number of tokens."""
    return join_parts(_parts(parser, pieces))


def _parts(parser: AnswerParser, pieces: Iterable[tuple[str, int]]) -> Iterator[Part]:
    for text, num_tokens in pieces:
        yield from parser.feed(text, num_tokens, is_final=False)
    yield from parser.feed("", 0, is_final=True)
