"""An answer's parts as the events of its content blocks: start, deltas, stop; one block after another."""

from collections.abc import Iterable, Mapping
from typing import Any

from atomesh.frontend.answer.parts import (
    ContentDelta,
    Part,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from atomesh.frontend.anthropic.events import event_frame
from atomesh.frontend.anthropic.signature import Signature
from atomesh.frontend.http.json_text import encode_json

_DELTA_START = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
)
_DELTA_END = b"}}\n\n"
_DELTAS = {
    "text": (b"text_delta", b"text"),
    "thinking": (b"thinking_delta", b"thinking"),
    "tool_use": (b"input_json_delta", b"partial_json"),
}


class StreamedBlocks:
    """With `shows_thinking` false a block of thoughts has none, only their signature."""

    def __init__(self, *, shows_thinking: bool = True) -> None:
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open: str | None = None  # the type of the block that is
        self._delta_start = b""
        self._signature = Signature()

    def frames(self, parts: Iterable[Part]) -> bytes:
        return b"".join([self._frames(part) for part in parts])

    def text(self, text: str) -> bytes:
        """As `frames` of one part for the reader; nothing for an empty one."""
        if not text:
            return b""
        begin = b"" if self._open == "text" else self._start({"type": "text", "text": ""})
        return begin + self._delta(text)

    def stop(self) -> bytes:
        """The end of the open block, if one is."""
        if self._open is None:
            return b""
        end = event_frame({"type": "content_block_stop", "index": self._index})
        is_thought, self._open = self._open == "thinking", None
        return self._sign() + end if is_thought else end

    def _frames(self, part: Part) -> bytes:
        match part:
            case ContentDelta(text):
                return self.text(text)
            case ReasoningDelta(text):
                return self._thought(text)
            case ToolCallStart(call_id=call_id, name=name):
                return self._start({"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case ToolArgumentsDelta(text=text):
                return self._delta(text)

    def _thought(self, text: str) -> bytes:
        if not text:
            return b""
        begin = b""
        if self._open != "thinking":
            begin = self._start({"type": "thinking", "thinking": "", "signature": ""})
            self._signature = Signature()
        self._signature.add(text)
        return begin + self._delta(text) if self._shows_thinking else begin

    def _start(self, block: Mapping[str, Any]) -> bytes:
        before = self.stop()
        self._index += 1
        self._open = kind = str(block["type"])
        self._delta_start = _DELTA_START % (self._index, *_DELTAS[kind])
        return before + event_frame(
            {"type": "content_block_start", "index": self._index, "content_block": block}
        )

    def _delta(self, text: str) -> bytes:
        return self._delta_start + encode_json(text) + _DELTA_END

    def _sign(self) -> bytes:
        delta = {"type": "signature_delta", "signature": self._signature.text}
        return event_frame({"type": "content_block_delta", "index": self._index, "delta": delta})
