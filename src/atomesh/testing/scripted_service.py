"""A TokenService that says what a test told it to, or else letters that depend on the request alone."""

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from atomesh.errors import AtomeshError, ContextLengthError
from atomesh.frontend.token_service import Carry
from atomesh.protocol.generation import GenerationRequest, Timings, TokenDelta, TokenLogprobs
from atomesh.protocol.worker import LoadReport, ModelDescription
from atomesh.testing.going_ahead import going_ahead

_LETTERS = b"abcdefghijklmnopqrstuvwxyz "


@dataclass(slots=True)
class Script:
    """What happens to a request.

    `tokens[choice]` are its output ids before `max_tokens` and stop ids cut them; None is the seeded letters.
    One token a choice comes with each step. After `fail_after` steps `error` is raised, after `hang_after`
    steps nothing comes any more; with `gate`, each step waits for it to be set.
    """

    tokens: Sequence[Sequence[int]] | None = None
    error: AtomeshError | None = None
    fail_after: int = 0
    gate: asyncio.Event | None = None
    hang_after: int | None = None
    cached_tokens: int = 0


@dataclass(slots=True)
class ScriptedService:
    """`script` gives the script of a request; `running` and `aborted` hold request ids.

    With `goes_ahead` mere tokens go to the client as those of a mesh do.
    """

    description: ModelDescription
    script: Callable[[GenerationRequest], Script] = field(default=lambda _request: Script())
    unavailable: AtomeshError | None = None
    goes_ahead: bool = False
    load_report: LoadReport = field(default_factory=LoadReport)
    requests: list[GenerationRequest] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_running(self, count: int) -> None:
        """Returns when exactly `count` requests are running."""
        while len(self.running) != count:
            await self._changed.wait()

    def describe(self) -> ModelDescription:
        if self.unavailable is not None:
            raise self.unavailable
        return self.description

    def load(self) -> LoadReport:
        return self.load_report

    def loads(self) -> dict[str, LoadReport]:
        return {"scripted": self.load_report}

    async def generate(
        self, request: GenerationRequest, carry: Carry | None = None
    ) -> AsyncGenerator[list[TokenDelta], None]:
        self.requests.append(request)
        self.running.add(request.request_id)
        self._tell()
        is_complete = False
        steps = self._steps(request, self.script(request))
        if self.goes_ahead:
            steps = going_ahead(steps, request.n, carry)
        try:
            async with aclosing(steps):
                async for deltas in steps:
                    yield deltas
            is_complete = True
        except AtomeshError:
            is_complete = True
            raise
        finally:
            self.running.discard(request.request_id)
            if not is_complete:
                self.aborted.append(request.request_id)
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed.clear()

    async def _steps(
        self, request: GenerationRequest, script: Script
    ) -> AsyncGenerator[list[TokenDelta], None]:
        if len(request.prompt_token_ids) > self.description.max_model_len:
            raise ContextLengthError(
                f"maximum context length is {self.description.max_model_len} tokens", param="prompt"
            )
        answers = [_answer(request, script, choice) for choice in range(request.n)]
        steps = max(1, *(len(answer) for answer in answers))
        for step in range(steps):
            if script.error is not None and step == script.fail_after:
                raise script.error
            if step == script.hang_after:
                await asyncio.Event().wait()
            if script.gate is not None:
                await script.gate.wait()
            await asyncio.sleep(0)
            yield [
                _delta(request, script, choice, answer, step)
                for choice, answer in enumerate(answers)
                if step < len(answer) or step == 0
            ]


def scripted_logprobs(token_id: int, top: int) -> TokenLogprobs:
    """The token has probability 1/2 and rank 1, the ids after it 1/4, 1/8, …"""
    ranked = [(token_id + place, -math.log(2) * (place + 1)) for place in range(top)]
    return TokenLogprobs(token_id, -math.log(2), 1, ranked)


def _answer(request: GenerationRequest, script: Script, choice: int) -> list[int]:
    sampling = request.sampling
    tokens = _letters(request, choice) if script.tokens is None else script.tokens[choice]
    ends = {*sampling.eos_token_ids, *sampling.stop_token_ids}
    answer: list[int] = []
    for token in tokens[: sampling.max_tokens]:
        answer.append(token)
        if token in ends and len(answer) > sampling.min_tokens:
            break
    return answer


def _letters(request: GenerationRequest, choice: int) -> list[int]:
    """Greedy requests get the same letters whatever their seed."""
    sampling = request.sampling
    seed = 0 if sampling.temperature == 0.0 else sampling.seed
    key = f"{seed} {choice} {request.prompt_token_ids}".encode()
    stream = hashlib.shake_128(key).digest(sampling.max_tokens)
    return [_LETTERS[byte % len(_LETTERS)] for byte in stream]


def _delta(
    request: GenerationRequest, script: Script, choice: int, answer: Sequence[int], step: int
) -> TokenDelta:
    sampling = request.sampling
    is_start = step == 0 and choice == 0
    tokens = list(answer[step : step + 1])
    is_last = step + 1 >= len(answer)
    is_stop = bool(tokens) and tokens[0] in {*sampling.eos_token_ids, *sampling.stop_token_ids}
    logprobs = None
    if sampling.logprobs is not None:
        logprobs = [scripted_logprobs(token, sampling.logprobs) for token in tokens]
    return TokenDelta(
        request_id=request.request_id,
        choice=choice,
        token_ids=tokens,
        logprobs=logprobs,
        prompt_logprobs=_prompt_logprobs(request)
        if is_start and sampling.prompt_logprobs is not None
        else None,
        finish_reason=None if not is_last else "stop" if is_stop else "length",
        stop_token_id=tokens[0] if is_last and is_stop and tokens[0] in sampling.stop_token_ids else None,
        cached_tokens=script.cached_tokens if is_start else None,
        timings=Timings(0.25, 0.5) if is_start else None,
    )


def _prompt_logprobs(request: GenerationRequest) -> list[TokenLogprobs | None]:
    top = request.sampling.prompt_logprobs or 0
    return [None, *(scripted_logprobs(token, top) for token in request.prompt_token_ids[1:])]
