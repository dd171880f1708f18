"""Hand-offs between two foreign engines, leg by leg, as the dispatcher sends them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from atomesh.errors import EngineError, InvalidRequestError, ServiceUnavailableError
from atomesh.mesh.request_flow.relayed_flow import OtherLegFailedError
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, PrefillLeg, Timings
from atomesh.protocol.ticket import Ticket
from atomesh.testing.backend_bench import HttpBench, pair_of, read_all, request_of
from atomesh.testing.fake_engine_server import HOLD, Speech

Test = Callable[[Sequence[HttpBench]], Awaitable[None]]
TICKET = Ticket(
    ticket_id=b"t" * 16, gateway="g", serial=1, request_id="r1-2", prefill="p", decode="d", ttl_s=60.0
)


def both(kind: str, test: Test) -> None:
    async def whole() -> None:
        async with pair_of(kind) as pair:
            await test(pair)
            hand_offs: Any = pair[0].backend
            await pair[0].until(lambda: len(hand_offs.context.hand_offs) == 0)

    asyncio.run(whole())


def legs(pair: Sequence[HttpBench], request: GenerationRequest, on_failure: Any = "recompute") -> Any:
    """The streams of both legs, sent as the flow sends them."""
    prefill, decode = pair
    address = prefill.worker.description
    assert address is not None
    assert address.kv_address is not None
    first = prefill.submit(request, PrefillLeg(ticket=TICKET, decode_address="d"))
    outputs: dict[int, list[int]] = {choice: [] for choice in range(request.n)}
    leg = DecodeLeg(outputs=outputs, ticket=TICKET, prefill_address=address.kv_address, on_failure=on_failure)
    return first, decode.submit(request, leg)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_the_answer_is_decodes_alone(kind: str) -> None:
    async def test(pair: Sequence[HttpBench]) -> None:
        prefill, decode = pair
        prefill.says(Speech([99], cached=1))
        decode.says(Speech([11, 12, 13]))
        first, second = legs(pair, request_of(1, 2))
        [facts] = await read_all(first)
        deltas = await read_all(second)

        assert (facts.token_ids, facts.cached_tokens) == ([], 1)
        assert [token for delta in deltas for token in delta.token_ids] == [11, 12, 13]
        assert [delta.kv_source for delta in deltas] == ["transferred", *[None] * (len(deltas) - 1)]

    both(kind, test)


def test_vllm_s_times_are_prefill_s_turn_and_decode_s_wait_for_kv() -> None:
    async def test(pair: Sequence[HttpBench]) -> None:
        first, second = legs(pair, request_of(1, 2))
        [facts] = await read_all(first)
        deltas = await read_all(second)

        assert facts.timings == Timings(0.25, 0.5)
        assert [delta.timings for delta in deltas if delta.timings is not None] == [Timings(0.0, 0.0, 0.25)]

    both("vllm", test)


def test_b2_vllm_prefill_has_both_caps_at_one_and_no_stream_options() -> None:
    async def test(pair: Sequence[HttpBench]) -> None:
        prefill, decode = pair
        first, second = legs(pair, request_of(1, 2, n=2, min_tokens=3, logprobs=2))
        await read_all(first)
        await read_all(second)
        [asked], [decoded] = prefill.server.bodies, decode.server.bodies

        assert (asked["max_tokens"], asked["max_completion_tokens"], asked["min_tokens"]) == (1, 1, 1)
        assert (asked["n"], asked["stream"]) == (1, False)
        assert not {"stream_options", "logprobs"} & set(asked)
        assert asked["kv_transfer_params"]["do_remote_decode"] is True
        assert (decoded["max_tokens"], decoded["min_tokens"], decoded["n"]) == (8, 3, 2)
        assert decoded["kv_transfer_params"]["do_remote_prefill"] is True
        assert decoded["kv_transfer_params"]["remote_engine_id"] == prefill.server.url
        assert decoded["prompt"] == asked["prompt"] == [1, 2]
        assert decoded["seed"] == asked["seed"]

    both("vllm", test)


def test_b2_sglang_legs_meet_in_one_room() -> None:
    async def test(pair: Sequence[HttpBench]) -> None:
        prefill, decode = pair
        first, second = legs(pair, request_of(1, 2, min_tokens=3))
        await read_all(first)
        await read_all(second)
        [asked], [decoded] = prefill.server.bodies, decode.server.bodies
        meeting = ("bootstrap_host", "bootstrap_port", "bootstrap_room")

        assert [asked[name] for name in meeting] == [decoded[name] for name in meeting]
        assert (asked["bootstrap_host"], asked["bootstrap_port"]) == ("127.0.0.1", 8998)
        assert 0 <= asked["bootstrap_room"] < 2**63
        assert (asked["stream"], decoded["stream"]) == (False, True)
        assert decoded["sampling_params"]["min_new_tokens"] == 3

    both("sglang", test)


def test_a_prefill_that_hands_over_nothing_is_recomputed_and_told() -> None:
    async def test(pair: Sequence[HttpBench]) -> None:
        pair[0].server.hands_over = False  # type: ignore[attr-defined]
        pair[1].says(Speech([11, 12]))
        first, second = legs(pair, request_of(1, 2))
        await read_all(first)
        deltas = await read_all(second)

        assert deltas[0].kv_source == "recomputed"
        assert "kv_transfer_params" not in pair[1].server.bodies[0]

    both("vllm", test)


def test_or_it_fails_where_that_is_the_policy() -> None:
    async def test(pair: Sequence[HttpBench]) -> None:
        pair[0].server.hands_over = False  # type: ignore[attr-defined]
        first, second = legs(pair, request_of(1, 2), "fail")
        await read_all(first)

        with pytest.raises(EngineError, match="KV connector"):
            await read_all(second)
        assert pair[1].server.bodies == []

    both("vllm", test)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize(("status", "error"), [(400, InvalidRequestError), (503, ServiceUnavailableError)])
def test_a5_what_prefill_refuses_ends_decode_at_once(kind: str, status: int, error: type[Exception]) -> None:
    async def test(pair: Sequence[HttpBench]) -> None:
        pair[0].says(Speech(status=status, message="not this one"))
        first, second = legs(pair, request_of(1, 2))

        with pytest.raises(error):
            await read_all(first)
        with pytest.raises(OtherLegFailedError):
            await read_all(second)

    both(kind, test)


def test_what_decode_refuses_ends_a_prefill_that_waits_for_it() -> None:
    async def test(pair: Sequence[HttpBench]) -> None:
        pair[1].says(Speech(status=503))
        first, second = legs(pair, request_of(1, 2))

        with pytest.raises(ServiceUnavailableError):
            await read_all(second)
        with pytest.raises(OtherLegFailedError):
            await read_all(first)
        await pair[0].until(lambda: pair[0].num_aborted == 1)

    both("sglang", test)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_c1_a_client_that_leaves_ends_both_legs(kind: str) -> None:
    async def test(pair: Sequence[HttpBench]) -> None:
        pair[0].says(Speech([HOLD, 99]))
        pair[1].says(Speech([11, 12, HOLD, 13]))
        first, second = legs(pair, request_of(1, 2))
        num_legs = {"vllm": (1, 0), "sglang": (1, 1)}[kind]  # vLLM's decode is asked after prefill's answer
        for bench, count in zip(pair, num_legs, strict=True):
            await bench.until(lambda bench=bench, count=count: bench.num_asked == count)
        first.abort()
        second.abort()

        for bench, count in zip(pair, num_legs, strict=True):
            await bench.until(lambda bench=bench, count=count: bench.num_aborted == count)
        assert [bench.num_asked for bench in pair] == list(num_legs)

    both(kind, test)


def test_half_a_sglang_pair_serves_nothing_alone() -> None:
    async def test(pair: Sequence[HttpBench]) -> None:
        with pytest.raises(ServiceUnavailableError, match="half of a pair"):
            await read_all(pair[1].submit(request_of(1, 2)))
        assert pair[1].server.bodies == []

    both("sglang", test)
