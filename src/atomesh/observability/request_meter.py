"""One request's times and counts on their way into the metrics: the caller says what, the meter when."""

from atomesh.clock import Clock
from atomesh.observability.metrics import ModelMetrics
from atomesh.protocol.generation import ServingPath, Timings


class RequestMeter:
    """`finished` counts the choices that have ended."""

    def __init__(self, metrics: ModelMetrics, clock: Clock, received_at: float, prompt_tokens: int) -> None:
        """`received_at` is on `clock`'s scale: the moment the request arrived."""
        self._metrics = metrics
        self._clock = clock
        self._received_at = received_at
        self._prompt_tokens = prompt_tokens
        self._first_at: float | None = None
        self._last_at = received_at
        self.finished = 0

    def saw_step(self, tokens: int, timings: Timings | None = None) -> None:
        """A step's tokens have been written to the client; `timings` are what is known of them by now."""
        now = self._clock.now()
        if self._first_at is None:
            self._first_at = now
            self._metrics.time_to_first_token_seconds.observe(now - self._received_at)
            self._split(now - self._received_at, timings or Timings(0.0, 0.0))
            self._metrics.prompt_tokens.inc(self._prompt_tokens)
        else:
            self._metrics.inter_token_latency_seconds.observe(now - self._last_at)
        self._metrics.generation_tokens.inc(tokens)
        self._last_at = now

    def saw_finish(self, reason: str) -> None:
        """One choice has ended: stop, length, abort or error."""
        self._metrics.success[reason].inc()
        self.finished += 1

    def saw_end(
        self, completion_tokens: int, timings: Timings | None, path: ServingPath | None = None
    ) -> None:
        """All of the answer is there, and `path` is the way it took in the end."""
        metrics = self._metrics
        metrics.e2e_request_latency_seconds.observe(self._clock.now() - self._received_at)
        metrics.request_prompt_tokens.observe(self._prompt_tokens)
        metrics.request_generation_tokens.observe(completion_tokens)
        decode_s = 0.0 if self._first_at is None else self._last_at - self._first_at
        metrics.request_decode_time_seconds.observe(decode_s)
        tokens_after_first = completion_tokens / max(self.finished, 1) - 1
        if tokens_after_first > 0:
            metrics.request_time_per_output_token_seconds.observe(decode_s / tokens_after_first)
        if path is not None:
            metrics.paths[path].inc()
        if timings is not None:
            metrics.request_queue_time_seconds.observe(timings.queue_s)
            metrics.request_prefill_time_seconds.observe(timings.prefill_s)
            metrics.request_inference_time_seconds.observe(timings.prefill_s + decode_s)
            metrics.request_transfer_time_seconds.observe(timings.transfer_s)

    def _split(self, ttft_s: float, timings: Timings) -> None:
        """The parts of the time to the first token; what is not the engine's is its first decode's.

        They sum to it whatever an engine says: none is longer than what those before it have left.
        """
        left_s = ttft_s
        for name, said_s in (
            ("queue", timings.queue_s),
            ("prefill", timings.prefill_s),
            ("transfer", timings.transfer_s),
            ("first_decode", ttft_s),
        ):
            seconds = min(max(said_s, 0.0), left_s)
            left_s -= seconds
            self._metrics.ttft_parts[name].observe(seconds)
