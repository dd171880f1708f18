"""The one interface between the flow of pieces and their JSON in an API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from atomesh.errors import AtomeshError
from atomesh.frontend.generation import ChoicePiece, StepPieces
from atomesh.protocol.generation import TokenLogprobs


@dataclass(slots=True)
class WholeChoice:
    """One choice, collected."""

    texts: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # of each text, in tokens
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, piece: ChoicePiece) -> None:
        self.texts.append(piece.text)
        self.sizes.append(len(piece.token_ids))
        self.token_ids.extend(piece.token_ids)
        self.logprobs.extend(piece.logprobs)
        self.finish_reason = piece.finish_reason
        self.stop_reason = piece.stop_reason

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Renderer(Protocol):
    @property
    def ending(self) -> bytes:
        """What ends a stream that is complete, after the last frames."""
        ...

    def frames(self, step: StepPieces) -> bytes:
        """The chunks for one step, to be written at once; empty when the step has nothing to say."""
        ...

    def last_frames(self, extra: Mapping[str, Any]) -> bytes:
        """What comes after all choices have finished, before the ending; `extra` goes on the last chunk."""
        ...

    def failure(self, error: AtomeshError) -> bytes:
        """The frames that tell a failure after the 200; the connection is cut after them."""
        ...

    def whole(self, choices: Sequence[Sequence[WholeChoice]]) -> dict[str, Any]:
        """The body of an answer that is not streamed; choices by prompt, then by index."""
        ...
