"""The engine behind every gateway of benchmarks/gateway.py: its first token at once, the others one a step.

`python gateway_mock.py PLAN.json` serves HTTP and, for our own gateway, the token plane, with the same tokens
in the same step for all running answers. It prints its port as JSON, and ends with its input.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import msgspec
import uvloop
from gateway_mock_plan import MockPlan, Steps
from gateway_mock_plane import serve_token_plane
from mock_connection import RequestConnection
from mock_dialect import RENDER, Asked, Dialect, asked_decoder, probed, rendered
from mock_http import STREAM_HEAD, MockRequest, whole_answer


class HttpAnswer:
    def __init__(self, asked: Asked, dialect: Dialect, transport: asyncio.Transport) -> None:
        self._asked, self._dialect, self._transport = asked, dialect, transport
        self._wanted = asked.wanted
        self._said = 0

    def step(self) -> bool:
        if self._transport.is_closing():
            return False
        number, self._said = self._said, self._said + 1
        is_last = self._said == self._wanted
        data = self._dialect.token(number, is_last=is_last)
        if number == 0:
            data = STREAM_HEAD + data
        if is_last:
            data += self._dialect.end(self._asked, cached=0, prompt=0)
        self._transport.write(data)
        return not is_last


class HttpEngine(RequestConnection):
    """One connection."""

    def __init__(self, steps: Steps, dialects: dict[tuple[bool, bool], Dialect], started_at: float) -> None:
        super().__init__()
        self._steps, self._dialects, self._started_at = steps, dialects, started_at

    def heed(self, request: MockRequest) -> None:
        if request.method == "POST":
            self._work(request.path, request.body)
        elif (found := probed(request.path, self._started_at)) is not None:
            self.transport.write(whole_answer(*found))
        else:
            self.transport.write(whole_answer(b"{}", status=404))

    def _work(self, path: str, body: bytes) -> None:
        if path.endswith(RENDER):
            self.transport.write(whole_answer(rendered(body)))
            return
        asked = asked_decoder.decode(body)
        dialect = self._dialects[path == "/v1/chat/completions", asked.return_token_ids]
        if asked.stream:
            self._steps.begin(HttpAnswer(asked, dialect, self.transport))
        else:
            self.transport.write(whole_answer(dialect.whole(asked, cached=0, prompt=0)))


async def serve(plan: MockPlan) -> None:
    started_at = time.time()
    loop, steps = asyncio.get_running_loop(), Steps(plan.step_s)
    dialects = {
        (is_chat, has_ids): Dialect(plan.texts, plan.token_ids, is_chat=is_chat, has_ids=has_ids)
        for is_chat in (False, True)
        for has_ids in (False, True)
    }
    server = await loop.create_server(
        lambda: HttpEngine(steps, dialects, started_at), "127.0.0.1", 0, backlog=1024
    )
    if plan.model_path:
        await serve_token_plane(plan, steps)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=MockPlan)
    uvloop.run(serve(plan))


if __name__ == "__main__":
    main()
