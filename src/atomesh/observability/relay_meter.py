"""A relayed request's times and counts on their way into its model's metrics."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from atomesh.clock import Clock
from atomesh.observability.metrics import ModelMetrics


class RelayMeter:
    """Of tokens it knows no times between them, only what the answer took in all."""

    def __init__(self, metrics: ModelMetrics, clock: Clock, received_at: float) -> None:
        """`received_at` is on `clock`'s scale: the moment the request arrived."""
        self._metrics = metrics
        self._clock = clock
        self._received_at = received_at
        self._has_begun = False
        self._failure = ""

    def saw_first_bytes(self) -> None:
        self._has_begun = True
        self._metrics.time_to_first_token_seconds.observe(self._clock.now() - self._received_at)

    @asynccontextmanager
    async def until_end(self) -> AsyncIterator[None]:
        """The answer comes inside: what leaves it early is the reason for which it ended."""
        with self._metrics.in_flight.track_inprogress():
            try:
                yield
            except Exception:
                self._failure = "error"
                raise
            except BaseException:
                self._failure = "abort"
                raise

    def saw_end(self, prompt_tokens: int, completion_tokens: int, finish_reasons: Sequence[str]) -> None:
        """However it ended: by one reason a choice, where its server said so."""
        metrics = self._metrics
        for reason in (self._failure,) if self._failure else finish_reasons or ("stop",):
            metrics.success[reason].inc()
        if self._has_begun:
            metrics.prompt_tokens.inc(prompt_tokens)
            metrics.generation_tokens.inc(completion_tokens)
        if self._failure:
            return
        metrics.e2e_request_latency_seconds.observe(self._clock.now() - self._received_at)
        metrics.request_prompt_tokens.observe(prompt_tokens)
        metrics.request_generation_tokens.observe(completion_tokens)
