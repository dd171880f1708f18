"""What the mock engine of benchmarks/gateway.py says, and its beat: the same for HTTP and the token plane."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec


class MockPlan(msgspec.Struct, frozen=True):
    """`texts` and `token_ids` are the same tokens. `model_path` holds the files that give the token plane's
    model its text side; without it there is no token plane. `socket` is where that listens."""

    texts: list[str]
    token_ids: list[int]
    step_s: float
    socket: str = ""
    secret: str = ""
    model_path: str = ""
    vocab_size: int = 0
    eos_token_ids: tuple[int, ...] = ()


class Running(Protocol):
    def step(self) -> bool:
        """Say the next token; False when it was the last, or nobody listens."""
        ...


class Steps:
    """The engine's beat."""

    def __init__(self, step_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._step_s = step_s
        self._running: list[Running] = []
        self._after: list[Callable[[], None]] = []
        self._next = self._loop.time() + step_s
        self._loop.call_at(self._next, self._step)

    def begin(self, answer: Running) -> None:
        """With its first token at once."""
        if answer.step():
            self._running.append(answer)

    def after_each(self, callback: Callable[[], None]) -> None:
        self._after.append(callback)

    def _step(self) -> None:
        self._running = [answer for answer in self._running if answer.step()]
        for callback in self._after:
            callback()
        self._next = max(self._next + self._step_s, self._loop.time())
        self._loop.call_at(self._next, self._step)
