import asyncio

import pytest

from atomesh.cli import supervisor as module
from atomesh.cli.supervisor import ChildSpec, Supervisor


def test_a_child_begins_after_the_head_start_of_those_before_it_and_not_when_stopped_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []
    has_started = asyncio.Event()

    async def start(*words: object, **_options: object) -> object:
        started.append(str(words[3]))
        has_started.set()
        return await real("/bin/sleep", "60", start_new_session=True)

    real = asyncio.create_subprocess_exec
    monkeypatch.setattr(module.asyncio, "create_subprocess_exec", start)

    async def run() -> None:
        specs = [ChildSpec("a", ["first"], 1.0), ChildSpec("b", ["second"], 1.0, head_start_s=60.0)]
        both = Supervisor(specs)
        running = asyncio.create_task(both.run(lambda: None))
        await has_started.wait()
        both.stop()
        assert await running is None

    asyncio.run(asyncio.wait_for(run(), 10.0))
    assert started == ["first"]
