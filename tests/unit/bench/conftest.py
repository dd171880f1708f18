"""A fake server in a thread of its own, for the commands, which run their own event loop."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from atomesh.testing.fake_openai_server import FakeOpenAIServer, Script


@contextmanager
def served(server: FakeOpenAIServer) -> Iterator[FakeOpenAIServer]:
    is_up = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        async with server:
            is_up.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    is_up.wait(5)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(5)
        loop.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeOpenAIServer]]:
    with ExitStack() as stack:

        def start(*scripts: Script) -> FakeOpenAIServer:
            return stack.enter_context(served(FakeOpenAIServer(*scripts)))

        yield start
