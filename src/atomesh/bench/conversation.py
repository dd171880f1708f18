"""A chat's memory, and one answer as it streams in; knows no terminal and no socket."""

from dataclasses import dataclass, field
from typing import Any

from atomesh.bench.completion_stream import Completion

_CONTROL = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)])
_CONTROL.pop(0x09)
_CONTROL.pop(0x0A)


def printable(text: str) -> str:
    """Without the control characters by which a model could drive the user's terminal.

    Tabs and newlines stay.
    """
    return text.translate(_CONTROL)


@dataclass(slots=True)
class Conversation:
    """`system` is None for a chat without a system message."""

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    def messages_with(self, question: str) -> list[dict[str, str]]:
        """What to send to have `question` answered."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return [*head, *self.turns, {"role": "user", "content": question}]

    def remember(self, question: str, answer: str) -> None:
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        """Forgets all turns; the system message stays."""
        self.turns.clear()


@dataclass(frozen=True, slots=True)
class ChatParams:
    """None leaves a value to the server."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None

    def body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        chosen = {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}
        return body | {name: value for name, value in chosen.items() if value is not None}


def speed_line(completion: Completion, asked_s: float) -> str:
    """How fast an answer came: its tokens, tokens/s from the first to the last, and the time to the first."""
    count = completion.output_tokens
    about = "" if completion.counted_by_usage else "about "
    parts = [f"{about}{count} token{'' if count == 1 else 's'}"]
    seconds = completion.last_s - completion.first_s
    if count > 1 and seconds > 0:
        parts.append(f"{(count - 1) / seconds:.1f} tokens/s")
    parts.append(f"first token after {completion.first_s - asked_s:.2f} s")
    if completion.finish_reason == "length":
        parts.append("cut at the length limit")
    return " · ".join(parts)
