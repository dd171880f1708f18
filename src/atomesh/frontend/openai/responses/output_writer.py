"""One answer's parts as output items, and the events that tell of each item's beginning, growth and end.

message     output_item.added, content_part.added, output_text.delta…, output_text.done, content_part.done,
            output_item.done
reasoning   the same with reasoning_text
call        output_item.added, function_call_arguments.delta…, .done, output_item.done
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from atomesh.frontend.answer.last_call import is_object
from atomesh.frontend.answer.parts import (
    ContentDelta,
    Part,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from atomesh.frontend.openai.responses.items import Item, Mint, seal

Event = dict[str, Any]  # with its `type`; the sequence number is the stream's
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class _OpenItem(ABC):
    """The item at place `index` of the output, while it grows."""

    def __init__(self, index: int, item_id: str) -> None:
        self.index = index
        self.id = item_id
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def place(self) -> Event:
        return {"item_id": self.id, "output_index": self.index}

    def begin(self) -> list[Event]:
        return [{"type": "response.output_item.added", "output_index": self.index, "item": self.empty()}]

    def end(self, status: ItemStatus) -> list[Event]:
        item = self.item(status)
        return [
            *self._last_events(),
            {"type": "response.output_item.done", "output_index": self.index, "item": item},
        ]

    @abstractmethod
    def empty(self) -> Item:
        """The item before its first text."""

    @abstractmethod
    def item(self, status: ItemStatus) -> Item:
        """The item as far as it has come."""

    @abstractmethod
    def _last_events(self) -> list[Event]: ...


class _TextItem(_OpenItem):
    """An item with one part of text."""

    kind = ""  # of its part

    def begin(self) -> list[Event]:
        added = {"type": "response.content_part.added", **self.place, "content_index": 0}
        return [*super().begin(), {**added, "part": self._part("")}]

    def _last_events(self) -> list[Event]:
        place = {**self.place, "content_index": 0}
        text = self.text
        return [
            {"type": f"response.{self.kind}.done", **place, "text": text, **self._extra()},
            {"type": "response.content_part.done", **place, "part": self._part(text)},
        ]

    @abstractmethod
    def _part(self, text: str) -> Item: ...

    def _extra(self) -> Event:
        return {}


class _OpenMessage(_TextItem):
    kind = "output_text"

    def __init__(self, index: int, item_id: str) -> None:
        super().__init__(index, item_id)
        self._logprobs: list[Any] = []

    def add(self, text: str, logprobs: Sequence[Any]) -> Event:
        self._texts.append(text)
        self._logprobs += logprobs
        return {
            "type": "response.output_text.delta",
            **self.place,
            "content_index": 0,
            "delta": text,
            "logprobs": logprobs,
        }

    def empty(self) -> Item:
        return {**self.item("in_progress"), "content": []}

    def item(self, status: ItemStatus) -> Item:
        content = [self._part(self.text)]
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _part(self, text: str) -> Item:
        logprobs = list(self._logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _extra(self) -> Event:
        return {"logprobs": self._logprobs}


class _OpenReasoning(_TextItem):
    kind = "reasoning_text"

    def __init__(self, index: int, item_id: str, *, is_sealed: bool) -> None:
        super().__init__(index, item_id)
        self._is_sealed = is_sealed

    def add(self, text: str) -> Event:
        self._texts.append(text)
        return {"type": "response.reasoning_text.delta", **self.place, "content_index": 0, "delta": text}

    def empty(self) -> Item:
        return {"id": self.id, "type": "reasoning", "status": "in_progress", "summary": [], "content": []}

    def item(self, status: ItemStatus) -> Item:
        item = {**self.empty(), "status": status, "content": [self._part(self.text)]}
        return {**item, "encrypted_content": seal(self.text)} if self._is_sealed else item

    def _part(self, text: str) -> Item:
        return {"type": "reasoning_text", "text": text}


class _OpenCall(_OpenItem):
    def __init__(self, index: int, item_id: str, call: ToolCallStart) -> None:
        super().__init__(index, item_id)
        self._call = call

    def add(self, text: str) -> Event:
        self._texts.append(text)
        return {"type": "response.function_call_arguments.delta", **self.place, "delta": text}

    def empty(self) -> Item:
        return {
            "id": self.id,
            "type": "function_call",
            "status": "in_progress",
            "arguments": "",
            "call_id": self._call.call_id,
            "name": self._call.name,
        }

    def item(self, status: ItemStatus) -> Item:
        if status == "completed" and not is_object(self.text):
            status = "incomplete"
        return {**self.empty(), "status": status, "arguments": self.text}

    def _last_events(self) -> list[Event]:
        done = {"type": "response.function_call_arguments.done", **self.place}
        return [{**done, "name": self._call.name, "arguments": self.text}]


class OutputWriter:
    """Parts come in their order; at most one item is open at a time."""

    def __init__(self, mint: Mint, *, seals_reasoning: bool = False) -> None:
        self._mint = mint
        self._seals_reasoning = seals_reasoning
        self._done: list[Item] = []
        self._open: _OpenItem | None = None

    def add(self, part: Part, logprobs: Sequence[Any] = ()) -> list[Event]:
        """`logprobs` are of the tokens that a ContentDelta's text was made of."""
        match part:
            case ContentDelta(text):
                return self._add_content(text, logprobs)
            case ReasoningDelta(text):
                return self._add_reasoning(text)
            case ToolCallStart():
                return self._replace(_OpenCall(self._next, self._mint("fc_"), part))
            case ToolArgumentsDelta(text=text):
                return [self._open.add(text)] if isinstance(self._open, _OpenCall) else []

    def finish(self, status: ItemStatus, late_logprobs: Sequence[Any] = ()) -> list[Event]:
        """An answer that said nothing at all is an empty message.

        `late_logprobs` are of last tokens without any text, such as the end's.
        """
        is_silent = self._open is None and not self._done
        events = self._add_content("", late_logprobs) if is_silent or self._says(late_logprobs) else []
        return events + self.close(status)

    def close(self, status: ItemStatus) -> list[Event]:
        """Nothing comes after, whatever is open."""
        if self._open is None:
            return []
        item, self._open = self._open, None
        self._done.append(item.item(status))
        return item.end(status)

    def items(self) -> list[Item]:
        """As far as they have come."""
        return self._done if self._open is None else [*self._done, self._open.item("in_progress")]

    def _says(self, logprobs: Sequence[Any]) -> bool:
        return bool(logprobs) and isinstance(self._open, _OpenMessage)

    @property
    def _next(self) -> int:
        return len(self._done) + (self._open is not None)

    def _add_content(self, text: str, logprobs: Sequence[Any]) -> list[Event]:
        message, events = self._open, list[Event]()
        if not isinstance(message, _OpenMessage):
            message = _OpenMessage(self._next, self._mint("msg_"))
            events = self._replace(message)
        if text or logprobs:
            events.append(message.add(text, logprobs))
        return events

    def _add_reasoning(self, text: str) -> list[Event]:
        reasoning, events = self._open, list[Event]()
        if not isinstance(reasoning, _OpenReasoning):
            reasoning = _OpenReasoning(self._next, self._mint("rs_"), is_sealed=self._seals_reasoning)
            events = self._replace(reasoning)
        return [*events, reasoning.add(text)]

    def _replace(self, item: _OpenItem) -> list[Event]:
        events = self.close("completed")
        self._open = item
        return events + item.begin()
