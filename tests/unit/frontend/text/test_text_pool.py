import asyncio
import threading
from typing import Any

import pytest

from atomesh.errors import ServiceUnavailableError
from atomesh.frontend.text.text_pool import TextPool


def test_long_texts_go_to_threads_and_the_line_is_bounded() -> None:
    release = threading.Event()

    async def run() -> list[Any]:
        pool = TextPool(threads=1, max_characters=2048, inline_characters=10)
        here = threading.get_ident()
        assert await pool.run(10, threading.get_ident) == here
        assert await pool.run_in_thread(0, threading.get_ident) != here
        assert await pool.run(1, threading.get_ident, together=11) != here
        first = asyncio.ensure_future(pool.run(11, lambda: (release.wait(), threading.get_ident())))
        second = asyncio.ensure_future(pool.run(11, lambda: "second"))
        await asyncio.sleep(0)
        assert await pool.run(10, lambda: "short") == "short"
        with pytest.raises(ServiceUnavailableError):
            await pool.run(11, lambda: "third")
        release.set()
        (_, there), answer = await asyncio.gather(first, second)
        assert there != here
        assert await pool.run(11, lambda: "room again") == "room again"
        pool.close()
        return [answer]

    assert asyncio.run(run()) == ["second"]
