"""What the client has of its answer so far, whichever workers it came from."""

from msgspec.structs import replace

from atomesh.errors import EngineError
from atomesh.protocol.bounds import MAX_SECONDS
from atomesh.protocol.generation import GenerationRequest, ServingPath, Timings, TokenDelta


class Answer:
    """`outputs` holds the tokens of the choices that are still open.

    `is_moved`: others than those that began it compute the rest.
    """

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.outputs: dict[int, list[int]] = {choice: [] for choice in range(request.n)}
        self.has_begun = False
        self.is_moved = False
        self._heard_again: dict[int, list[int]] = {}
        self._attempts = 0
        self._knows_cached_tokens = False
        self._path: ServingPath | None = None
        self._timings: Timings | None = None

    @property
    def is_over(self) -> bool:
        return not self.outputs

    @property
    def is_steady(self) -> bool:
        """Tokens to come are new to the client, and nothing but their number changes with them."""
        return self.has_begun and not any(self._heard_again.values())

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

    def first_outputs(self) -> dict[int, list[int]]:
        """Of each open choice the first token: from there one goes on with KV that is transferred."""
        return {choice: tokens[:1] for choice, tokens in self.outputs.items()}

    def hear_again(self) -> None:
        """What is there is computed once more: it is not for the client, and must be the same."""
        self.is_moved = True
        self._heard_again = self.open_outputs()

    def take(self, deltas: list[TokenDelta], path: ServingPath) -> list[TokenDelta]:
        """Note what has come; as the client shall see it, whichever leg it came from.

        Raises EngineError when what is heard again is not what the client has.
        """
        path = "recomputed" if self.is_moved else path
        news = (self._skip_heard(delta) for delta in deltas if delta.choice in self.outputs)
        seen = [self._present(delta) for delta in news if delta is not None]
        for delta in seen:
            self.outputs[delta.choice] += delta.token_ids
            if delta.finish_reason is not None:
                del self.outputs[delta.choice]
        if seen and path != self._path:
            self._path = path
            seen[0] = replace(seen[0], serving_path=path)
        self.has_begun = self.has_begun or bool(seen)
        return seen

    def _skip_heard(self, delta: TokenDelta) -> TokenDelta | None:
        """What is new in it; None when nothing is."""
        known = self._heard_again.get(delta.choice)
        if not known:
            return delta
        told = len(delta.token_ids)
        again, self._heard_again[delta.choice] = known[:told], known[told:]
        is_end = delta.finish_reason is not None and told <= len(known)
        if delta.token_ids[: len(again)] != again or is_end:
            raise EngineError("no other worker came to the same answer; send the request again")
        if told <= len(known):
            return None
        logprobs = None if delta.logprobs is None else delta.logprobs[len(again) :]
        return replace(delta, token_ids=delta.token_ids[len(again) :], logprobs=logprobs)

    def _present(self, delta: TokenDelta) -> TokenDelta:
        if delta.request_id != self.request.request_id:
            delta = replace(delta, request_id=self.request.request_id)
        if delta.timings is None and delta.cached_tokens is None and delta.kv_source is None:
            return delta
        delta = _as_far_as_it_can_be(delta, len(self.request.prompt_token_ids))
        cached = delta.cached_tokens
        if self.has_begun:
            is_news = self._attempts <= 1 and not self._knows_cached_tokens  # some engines tell in the end
            delta = replace(
                delta,
                cached_tokens=cached if is_news else None,
                prompt_logprobs=None,
                timings=self._with_transfer(delta.timings),
            )
        else:
            self._timings = delta.timings
        self._knows_cached_tokens = self._knows_cached_tokens or cached is not None
        return delta

    def _with_transfer(self, later: Timings | None) -> Timings | None:
        """The first leg's times, which some engines tell in the end, and what the later waited for KV."""
        if self._timings is None and self._attempts <= 1:
            self._timings = later
            return later
        if later is None or self._timings is None:
            return None
        self._timings = replace(self._timings, transfer_s=self._timings.transfer_s + later.transfer_s)
        return self._timings


def _as_far_as_it_can_be(delta: TokenDelta, num_prompt_tokens: int) -> TokenDelta:
    """No more cached tokens than the prompt has; without times that are none."""
    cached, timings = delta.cached_tokens, delta.timings
    if cached is not None and not 0 <= cached <= num_prompt_tokens:
        delta = replace(delta, cached_tokens=min(max(cached, 0), num_prompt_tokens))
    if timings is not None and not all(
        0.0 <= seconds <= MAX_SECONDS for seconds in (timings.queue_s, timings.prefill_s, timings.transfer_s)
    ):
        delta = replace(delta, timings=None)
    return delta
