"""What the client has of its answer so far, whichever workers it came from."""

from msgspec.structs import replace

from atomesh.protocol.generation import GenerationRequest, ServingPath, Timings, TokenDelta


class Answer:
    """`outputs` holds the tokens of the choices that are still open."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.outputs: dict[int, list[int]] = {choice: [] for choice in range(request.n)}
        self.has_begun = False
        self._attempts = 0
        self._path: ServingPath | None = None
        self._timings: Timings | None = None

    @property
    def is_over(self) -> bool:
        return not self.outputs

    @property
    def can_go_on_elsewhere(self) -> bool:
        """Each open choice has a token to go on from."""
        return all(self.outputs.values())

    @property
    def num_tokens(self) -> int:
        """Prompt and answer of the longest open choice."""
        longest = max(map(len, self.outputs.values()), default=0)
        return len(self.request.prompt_token_ids) + longest

    def next_attempt(self) -> GenerationRequest:
        """The request under an id that no worker has seen; the first attempt's is the request's own."""
        self._attempts += 1
        if self._attempts == 1:
            return self.request
        return replace(self.request, request_id=f"{self.request.request_id}~{self._attempts}")

    def rest_of(self, attempt: GenerationRequest) -> GenerationRequest:
        """What a decode leg is asked: the prompt has been answered for already."""
        if attempt.sampling.prompt_logprobs is None:
            return attempt
        return replace(attempt, sampling=replace(attempt.sampling, prompt_logprobs=None))

    def open_outputs(self) -> dict[int, list[int]]:
        return {choice: list(tokens) for choice, tokens in self.outputs.items()}

    def take(self, deltas: list[TokenDelta], path: ServingPath) -> list[TokenDelta]:
        """Note what has come; as the client shall see it, whichever leg it came from."""
        seen = [self._present(delta) for delta in deltas if delta.choice in self.outputs]
        for delta in seen:
            self.outputs[delta.choice] += delta.token_ids
            if delta.finish_reason is not None:
                del self.outputs[delta.choice]
        if seen and path != self._path:
            self._path = path
            seen[0] = replace(seen[0], serving_path=path)
        self.has_begun = self.has_begun or bool(seen)
        return seen

    def _present(self, delta: TokenDelta) -> TokenDelta:
        if delta.request_id != self.request.request_id:
            delta = replace(delta, request_id=self.request.request_id)
        if delta.timings is None and delta.cached_tokens is None and delta.kv_source is None:
            return delta
        if not self.has_begun:
            self._timings = delta.timings
            return delta
        return replace(
            delta, cached_tokens=None, prompt_logprobs=None, timings=self._with_transfer(delta.timings)
        )

    def _with_transfer(self, later: Timings | None) -> Timings | None:
        """The first leg's times, and what the later one waited for KV."""
        if later is None or self._timings is None:
            return None
        self._timings = replace(self._timings, transfer_s=self._timings.transfer_s + later.transfer_s)
        return self._timings
