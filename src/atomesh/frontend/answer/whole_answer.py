"""One choice's parts, put together: what an answer that is not streamed says."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from atomesh.frontend.answer.answer_parser import AnswerParser
from atomesh.frontend.answer.parts import (
    ContentDelta,
    Part,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)


@dataclass(slots=True)
class WholeCall:
    """`arguments` is the text of a JSON object."""

    call_id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class WholeAnswer:
    content: str = ""
    reasoning: str = ""
    calls: list[WholeCall] = field(default_factory=list)

    def add(self, part: Part) -> None:
        match part:
            case ContentDelta(text):
                self.content += text
            case ReasoningDelta(text):
                self.reasoning += text
            case ToolCallStart(call_id=call_id, name=name):
                self.calls.append(WholeCall(call_id, name))
            case ToolArgumentsDelta(index, text):
                self.calls[index].arguments += text


def parse_whole(parser: AnswerParser, pieces: Iterable[tuple[str, int]]) -> WholeAnswer:
    """Of all the pieces of a choice: text and number of tokens."""
    answer = WholeAnswer()
    for text, num_tokens in pieces:
        for part in parser.feed(text, num_tokens, is_final=False):
            answer.add(part)
    for part in parser.feed("", 0, is_final=True):
        answer.add(part)
    return answer
