"""Where a parser's findings become parts: neighbours joined, and white space around calls left out."""

from collections.abc import Callable

from atomesh.frontend.answer.last_call import LastCall
from atomesh.frontend.answer.parts import ContentDelta, Part, ToolArgumentsDelta, ToolCallStart


class PartSink:
    """White space before a call, or between one and the answer's end, is layout; all other is content."""

    def __init__(self, mint_id: Callable[[str, int], str]) -> None:
        """`mint_id` makes the id of a call from its name and index."""
        self.num_calls = 0
        self.last_call = LastCall()
        self._mint_id = mint_id
        self._ids: set[str] = set()
        self._parts: list[Part] = []
        self._content: list[str] = []
        self._arguments: list[str] = []
        self._space = ""
        self._follows_call = False

    def content(self, text: str) -> None:
        body = text.rstrip()
        if body:
            self._end_arguments()
            self._content += (self._space, body)
            self._space, self._follows_call = "", False
        self._space += text[len(body) :]

    def begin(self, name: str, call_id: str | None) -> None:
        """A call begins; `call_id` is the model's own, where it wrote one; no two have the same."""
        self._end_content()
        self._end_arguments()
        self._space = ""
        index = self.num_calls
        if call_id is None or call_id in self._ids:
            call_id = self._mint_id(name, index)
        self._ids.add(call_id)
        self._parts.append(ToolCallStart(index, call_id, name))
        self.num_calls += 1
        self.last_call.begin()
        self._follows_call = True

    def arguments(self, text: str) -> None:
        """More of the arguments of the call that began last."""
        self._arguments.append(text)
        self.last_call.add(text)

    def take(self, *, is_final: bool) -> list[Part]:
        """The parts since the last time."""
        if is_final and not self._follows_call:
            self._content.append(self._space)
            self._space = ""
        self._end_content()
        self._end_arguments()
        parts, self._parts = self._parts, []
        return parts

    def _end_content(self) -> None:
        if text := "".join(self._content):
            self._parts.append(ContentDelta(text))
        self._content.clear()

    def _end_arguments(self) -> None:
        if text := "".join(self._arguments):
            self._parts.append(ToolArgumentsDelta(self.num_calls - 1, text))
        self._arguments.clear()
