import asyncio

from atomesh.frontend.openai.responses.event_log import EventLog, follow
from atomesh.frontend.options import FrontendOptions


def frame(number: int) -> bytes:
    return b'event: e\ndata: {"n":%d}\n\n' % number


async def read_all(log: EventLog, place: int) -> bytes:
    return b"".join([news async for news in log.read(place)])


def test_a_reader_begins_anywhere_and_ends_with_the_log() -> None:
    async def test() -> None:
        log = EventLog()
        log.append(frame(0) + frame(1))
        readers = [asyncio.ensure_future(read_all(log, place)) for place in (0, 1, 2, 3, 9)]
        await asyncio.sleep(0)
        log.append(frame(2))
        await asyncio.sleep(0)
        log.append(frame(3))
        log.close(is_whole=True)
        assert await asyncio.gather(*readers) == [
            b"".join(map(frame, range(first, 4))) if first < 4 else b"" for first in (0, 1, 2, 3, 9)
        ]
        assert log.num_bytes == sum(len(frame(number)) for number in range(4))

    asyncio.run(test())


def told(*, is_whole: bool) -> list[dict[str, object]]:
    async def run() -> list[dict[str, object]]:
        log, sent = EventLog(), list[dict[str, object]]()
        log.append(frame(0))
        log.close(is_whole=is_whole)

        async def send(message: object) -> None:
            sent.append(message)  # type: ignore[arg-type]

        await follow(log, 0, send, FrontendOptions())
        return sent

    return asyncio.run(run())


def test_a_whole_log_ends_the_response_and_another_leaves_it_to_be_cut() -> None:
    start, events, *end = told(is_whole=True)
    assert start["type"] == "http.response.start"
    assert events["body"] == frame(0)
    assert end == [{"type": "http.response.body", "body": b""}]
    assert len(told(is_whole=False)) == 2
