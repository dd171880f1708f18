"""An answer's way into the metrics: each step is told once its bytes are away, each prompt's end once."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from atomesh.clock import Clock
from atomesh.frontend.generation import Generation, StepPieces
from atomesh.observability.metrics import ModelMetrics
from atomesh.observability.request_meter import RequestMeter


class Metering:
    """`generations` are those of one call, which arrived at `received_at` on `clock`'s scale."""

    def __init__(
        self, metrics: ModelMetrics, clock: Clock, received_at: float, generations: Sequence[Generation]
    ) -> None:
        self._metered = [
            (
                generation,
                RequestMeter(metrics, clock, received_at, len(generation.request.prompt_token_ids)),
            )
            for generation in generations
        ]

    def wrote(self, step: StepPieces) -> None:
        """The client has been sent what the step brought, so far as there is anything to send."""
        generation, meter = self._metered[step.prompt]
        tokens = 0
        for piece in step.pieces:
            tokens += len(piece.token_ids)
        meter.saw_step(tokens, generation.timings)
        for piece in step.pieces:
            if piece.finish_reason is not None:
                meter.saw_finish(piece.finish_reason)
        if meter.finished == generation.request.n:
            meter.saw_end(generation.completion_tokens, generation.timings, generation.serving_path)

    @asynccontextmanager
    async def until_end(self) -> AsyncIterator[None]:
        """The answer comes inside: what leaves it early is the reason for which unfinished prompts ended."""
        try:
            yield
        except Exception:
            self._give_up("error")
            raise
        except BaseException:
            self._give_up("abort")
            raise

    def _give_up(self, reason: str) -> None:
        for generation, meter in self._metered:
            if meter.finished < generation.request.n:
                meter.saw_finish(reason)
