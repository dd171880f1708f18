import asyncio
from typing import Any

import pytest

from atomesh.errors import AtomeshError, ContextLengthError
from atomesh.frontend.http.disconnect import ClientDisconnectedError, run_until_disconnect


async def leaving_client() -> Any:
    return {"type": "http.disconnect"}


def test_work_ends_with_the_client() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    with pytest.raises(ClientDisconnectedError):
        asyncio.run(run_until_disconnect(leaving_client, work()))
    assert ended == ["cleaned up"]


def test_work_s_own_end_and_error_come_through() -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    async def work(error: AtomeshError | None) -> None:
        if error is not None:
            raise error

    asyncio.run(run_until_disconnect(never, work(None)))
    with pytest.raises(ContextLengthError):
        asyncio.run(run_until_disconnect(never, work(ContextLengthError("long"))))
