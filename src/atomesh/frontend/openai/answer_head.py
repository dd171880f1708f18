"""What is the same on every chunk of one answer, and how its chunks are put together from prepared JSON."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atomesh import __version__
from atomesh.frontend.generation import Generation
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.usage import Usage, make_usage
from atomesh.protocol.worker import ModelDescription


def fingerprint(model: ModelDescription) -> str:
    """Changes when a seed may no longer give the same answer: other program version, model or number type."""
    text = f"{__version__}\0{model.name}\0{model.architecture}\0{model.dtype}"
    return "fp_" + hashlib.blake2b(text.encode(), digest_size=5).hexdigest()


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """`created` is in Unix seconds."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str

    def fields(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


def total_usage(generations: Sequence[Generation], reasoning_tokens: int = 0) -> Usage:
    return make_usage(
        sum(len(generation.request.prompt_token_ids) for generation in generations),
        sum(generation.completion_tokens for generation in generations),
        sum(generation.cached_tokens for generation in generations),
        reasoning_tokens,
    )


def no_reasoning() -> int:
    return 0


class ChunkWriter:
    """Frames of one stream. `include_usage` adds a chunk of its own, `continuous_usage` a figure on each."""

    def __init__(
        self,
        head: AnswerHead,
        generations: Sequence[Generation],
        *,
        include_usage: bool,
        continuous_usage: bool,
        count_reasoning: Callable[[], int] = no_reasoning,
    ) -> None:
        """`count_reasoning` says how many of the tokens so far were spent on reasoning."""
        self._generations = generations
        self._count_reasoning = count_reasoning
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._start = b"data: " + encode_json(head.fields())[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def frame(self, choice: bytes, extra: Mapping[str, Any] | None = None) -> bytes:
        """One chunk with one choice, which is JSON; `extra` are further top-level fields."""
        tail = self._end
        if self._continuous_usage:
            tail = b'],"usage":' + encode_json(self.usage()) + b"}\n\n"
        if extra:
            tail = b"]," + encode_json(extra)[1:-1] + tail[1:]
        return self._start + choice + tail

    def usage(self) -> Usage:
        return total_usage(self._generations, self._count_reasoning())

    def last_frame(self, extra: Mapping[str, Any]) -> bytes:
        """A chunk without choices, where the client asked for one: with the usage, or with `extra`."""
        fields = dict(extra)
        if self._include_usage or (fields and self._continuous_usage):
            fields["usage"] = self.usage()
        return self._start + b"]," + encode_json(fields)[1:] + b"\n\n" if fields else b""
