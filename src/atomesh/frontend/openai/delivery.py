"""How an answer's pieces reach the client, or the whole that it will get, the moment they arrive."""

from collections.abc import Sequence

from atomesh.frontend.generation import StepPieces
from atomesh.frontend.http.server_timing import ServerTiming
from atomesh.frontend.http.sse import EventStream
from atomesh.frontend.metering import Metering
from atomesh.frontend.openai.renderer import Renderer, WholeChoice


class StreamedDelivery:
    """Implements `frontend.generation.Delivery`, as the other one does."""

    def __init__(self, events: EventStream, renderer: Renderer, metering: Metering) -> None:
        self._events = events
        self._renderer = renderer
        self._metering = metering

    @property
    def is_free(self) -> bool:
        return self._events.is_free

    def deliver(self, step: StepPieces) -> None:
        if frames := self._renderer.frames(step):
            self._events.write_now(frames)
        self._metering.wrote(step)


class CollectedDelivery:
    """Into `choices`, by prompt, then by index."""

    is_free = True

    def __init__(
        self, choices: Sequence[Sequence[WholeChoice]], timing: ServerTiming, metering: Metering
    ) -> None:
        self._choices = choices
        self._timing = timing
        self._metering = metering

    def deliver(self, step: StepPieces) -> None:
        self._timing.saw_step()
        for piece in step.pieces:
            self._choices[step.prompt][piece.choice].add(piece)
        self._metering.wrote(step)
