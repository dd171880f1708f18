"""The back end of our own workers with a puppet at its other end, as a BackendBench."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from atomesh.clock import MonotonicClock
from atomesh.mesh.backends.atom import AtomBackend
from atomesh.protocol.frames import StepFrame, Submit
from atomesh.protocol.generation import FinishReason, TokenDelta
from atomesh.testing.backend_bench import BackendBench
from atomesh.testing.fake_engine_server import HOLD, Speech
from atomesh.testing.puppet_worker import PuppetWorker, serving

SECRET = b"s" * 32
KINDS = {400: "InvalidRequestError", 500: "EngineError", 503: "ServiceUnavailableError"}


class PuppetBench(BackendBench):
    """Around a worker of ours without an engine."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._address = f"unix:{directory / 'puppet.sock'}"
        self.puppet = PuppetWorker("unified", SECRET)
        self.backend = AtomBackend(self._address, SECRET, self.registry, MonotonicClock())
        self._speech = Speech()
        self._released = asyncio.Event()
        self._stack = AsyncExitStack()
        self._speaking: set[asyncio.Task[None]] = set()

    def says(self, speech: Speech) -> None:
        self._speech = speech

    def go_on(self) -> None:
        self._released.set()

    @property
    def num_asked(self) -> int:
        return len(self.puppet.submits)

    @property
    def num_aborted(self) -> int:
        return len(self.puppet.aborts)

    async def die(self) -> None:
        for task in self._speaking:
            task.cancel()
        await self._stack.aclose()

    async def come_back(self) -> None:
        self._stack = AsyncExitStack()
        await self._stack.enter_async_context(serving(self.puppet, self._address))
        answering = asyncio.create_task(self._answer())
        self._speaking.add(answering)

    async def _answer(self) -> None:
        seen = len(self.puppet.submits)
        while True:
            while len(self.puppet.submits) <= seen:  # noqa: ASYNC110  a puppet tells nobody what it hears
                await asyncio.sleep(0.002)
            self._speaking.add(asyncio.create_task(self._say(self.puppet.submits[seen], self._speech)))
            seen += 1

    async def _say(self, submit: Submit, speech: Speech) -> None:
        if speech.status != 200:
            self.puppet.fail(submit, KINDS[speech.status], speech.message)
            return
        last = len(speech.tokens) - 1
        for place, step in enumerate(speech.tokens):
            if step is HOLD:
                await self._released.wait()
            elif isinstance(step, int):
                is_end = place == last and not speech.error_after
                self._step(submit, step, speech.finish if is_end else None, speech)
            else:
                self.puppet.hang_up()
                return
        if speech.error_after:
            self.puppet.fail(submit, "EngineError", speech.message)

    def _step(self, submit: Submit, token: int, finish: FinishReason | None, speech: Speech) -> None:
        deltas = [
            TokenDelta(
                request_id=submit.request.request_id,
                choice=choice,
                token_ids=[token],
                finish_reason=finish,
                stop_token_id=speech.stop_token if finish == "stop" else None,
            )
            for choice in range(submit.request.n)
        ]
        self.puppet.send(StepFrame(deltas, self.puppet.load))
