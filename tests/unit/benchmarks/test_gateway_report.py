"""What the gateway's benchmark makes of given figures."""

import asyncio
import os
import time

import pytest
from gateway_load import Client
from gateway_peers import Gateway, process_cpu_s
from gateway_report import GatewayFound, LevelFound, Report, Setting
from gateway_text import TextCost

SETTING = Setting("0123456789", "a machine", "tiny", 3, True, 100, 0.01, "cache_aware", {"nginx": "1.22"})


def found(name: str, scale: float, ttft_s: float) -> GatewayFound:
    """Median CPU: 100 µs · scale a request, 1 ms · scale whole, 2 ms · scale a stream."""
    level = LevelFound([0.001 * scale, 0.002 * scale, 0.009 * scale], [ttft_s, 3 * ttft_s], [0.99])
    return GatewayFound(name, [1e-4 * scale] * 3, [1e-3 * scale] * 3, {32: level}, 3 * 2**20)


REPORT = Report(
    SETTING,
    [
        found("direct", 0.0, 0.001),
        found("sglang-router", 2.0, 0.002),
        found("vllm-router", 1.0, 0.003),
        found("ATOMesh, openai", 1.5, 0.004),
        found("ATOMesh, atom", 3.0, 0.005),
    ],
    TextCost(220, render_s=5e-5, tokenise_s=1.5e-4, detokenise_s=1e-6),
)


def test_ttft_is_what_comes_on_top_of_no_gateway() -> None:
    _, _, router, ours, _ = REPORT.found
    assert REPORT.added_ttft(router, 32, 50) == pytest.approx(0.006 - 0.002)
    assert REPORT.added_ttft(ours, 32, 99) == pytest.approx(0.01192 - 0.00298)
    assert REPORT.as_json()["added_ttft_s"]["vllm-router"]["32"]["p50"] == pytest.approx(0.004)


def test_the_table_has_the_medians_and_a_tokens_share() -> None:
    page = REPORT.as_markdown()
    assert "| vllm-router | 100 | 1.00 | 2.00 | 20.0 | 3 |" in page
    assert "| direct (all of it) | 2.00 | 2.98 | 990 |" in page
    assert "| direct |" not in page


def test_ours_is_held_against_the_cheaper_router_with_and_without_its_text_side() -> None:
    page = REPORT.as_markdown()
    assert "ATOMesh, openai, CPU beside the cheaper router's: a request of 1 token 1.50×" in page
    assert "a request of 1 token 3.00× (1.00×); a stream, 32 at once, 3.00× (2.85×)." in page


def test_cpu_time_of_a_process_is_the_kernels() -> None:
    end = time.process_time() + 0.02
    before = process_cpu_s(os.getpid())
    while time.process_time() < end:
        pass
    assert process_cpu_s(os.getpid()) - before == pytest.approx(0.02, abs=0.005)
    assert process_cpu_s(2**22 - 1) == 0.0
    assert Gateway("direct", 80).cpu_s() == 0.0


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd"
STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b'c3\r\ndata: {"delta":{"role":"assistant","content":""}}\n\n\r\n'
    b'c3\r\ndata: {"delta":{"content":" a"}}\n\n\r\n'
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)


@pytest.mark.parametrize("step", [1, 7, 64, 1000])
@pytest.mark.parametrize(("answer", "has_text"), [(PLAIN, False), (STREAM, True)])
def test_the_load_knows_an_answers_end_and_its_first_text(answer: bytes, has_text: bool, step: int) -> None:
    async def scenario() -> None:
        client = Client()
        sent: list[bytes] = []
        client.connection_made(_Transport(sent))
        asked = asyncio.ensure_future(client.ask(b"request"))
        await asyncio.sleep(0)
        for start in range(0, len(answer), step):
            assert not asked.done()
            before_text = b'content":" ' not in answer[: start + step]
            client.data_received(answer[start : start + step])
            if before_text:
                assert client.first_text_at is None
        assert await asked == answer
        assert sent == [b"request"]
        assert (client.first_text_at is not None) == has_text

    asyncio.run(scenario())


class _Transport(asyncio.Transport):
    def __init__(self, sent: list[bytes]) -> None:
        super().__init__()
        self._sent = sent

    def write(self, data: object) -> None:
        self._sent.append(bytes(data))  # type: ignore[call-overload]
