"""Both wires: what is asked of the engines, and what their answers mean, field by field."""

import asyncio
from typing import Any

import pytest

from atomesh.errors import ContextLengthError, InvalidRequestError
from atomesh.mesh.backends import sglang_wire, vllm_wire
from atomesh.mesh.backends.foreign_errors import to_error
from atomesh.mesh.backends.prometheus_text import read_metrics
from atomesh.protocol.generation import DecodeLeg, TokenLogprobs
from atomesh.protocol.reasoning import ReasoningSpec
from atomesh.testing.backend_bench import http_bench, read_all, request_of
from atomesh.testing.fake_engine_server import Speech

KINDS = ["vllm", "sglang"]


def answers(kind: str, speech: Speech, *prompt: int, **fields: Any) -> Any:
    async def whole() -> Any:
        async with http_bench(kind) as bench:
            bench.says(speech)
            deltas = await read_all(bench.submit(request_of(*prompt, **fields)))
            return deltas, bench.server.bodies

    return asyncio.run(whole())


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs(kind: str) -> None:
    deltas, _ = answers(kind, Speech([11, 12]), 1, logprobs=2)
    entries = [entry for delta in deltas for entry in delta.logprobs]

    assert entries == [
        TokenLogprobs(11, -0.11, 1, [(11, -0.11), (12, -0.61)]),
        TokenLogprobs(12, -0.12, 1, [(12, -0.12), (13, -0.62)]),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_no_logprobs_but_where_they_are_asked(kind: str) -> None:
    deltas, [body] = answers(kind, Speech([11]), 1)

    assert [delta.logprobs for delta in deltas] == [None]
    assert not {"logprobs", "return_logprob"} & set(body)


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_logprobs_come_whole(kind: str) -> None:
    deltas, [body] = answers(kind, Speech([11]), 5, 6, 7, prompt_logprobs=1, max_tokens=1)
    told = deltas[0].prompt_logprobs

    assert body["stream"] is False
    assert told == [None, TokenLogprobs(6, -0.06, 1, [(6, -0.06)]), TokenLogprobs(7, -0.07, 1, [(7, -0.07)])]


@pytest.mark.parametrize("kind", KINDS)
def test_cached_tokens(kind: str) -> None:
    deltas, _ = answers(kind, Speech([11, 12], cached=48), 1)

    assert [delta.cached_tokens for delta in deltas if delta.cached_tokens is not None] == [48]


def test_sglang_streams_of_both_sorts() -> None:
    async def whole() -> None:
        async with http_bench("sglang") as bench:
            for is_incremental in (False, True):
                bench.server.is_incremental = is_incremental  # type: ignore[attr-defined]
                bench.says(Speech([11, 12, 13]))
                deltas = await read_all(bench.submit(request_of(1, logprobs=1)))
                assert [delta.token_ids for delta in deltas] == [[11], [12], [13]]
                assert [len(delta.logprobs or ()) for delta in deltas] == [1, 1, 1]

    asyncio.run(whole())


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_an_answer_is_asked_choice_by_choice(kind: str) -> None:
    async def whole() -> None:
        async with http_bench(kind) as bench:
            bench.says(Speech([11]))
            leg = DecodeLeg(outputs={0: [8, 9], 2: [7]})
            deltas = await read_all(bench.submit(request_of(1, 2, n=3, min_tokens=4), leg))
            bodies = sorted(bench.server.bodies, key=str)
            prompts = sorted(body.get("prompt") or body["input_ids"] for body in bodies)
            sampling = [body.get("sampling_params", body) for body in bodies]

            assert sorted((delta.choice, *delta.token_ids) for delta in deltas) == [(0, 11), (2, 11)]
            assert prompts == [[1, 2, 7], [1, 2, 8, 9]]
            assert sorted(one.get("max_tokens", one.get("max_new_tokens")) for one in sampling) == [6, 7]
            assert sorted(one.get("min_tokens", one.get("min_new_tokens")) for one in sampling) == [2, 3]
            assert {one["n"] for one in sampling} == {1}

    asyncio.run(whole())


def test_what_vllm_is_asked() -> None:
    request = request_of(
        1, 2, n=2, eos_token_ids=(2,), stop_token_ids=(5,), bad_words=((9,),), logit_bias={3: 1.5}, top_k=4
    )
    body = vllm_wire.whole_body(request, "m")

    assert (body["prompt"], body["n"], body["seed"], body["max_tokens"]) == ([1, 2], 2, 7, 8)
    assert (body["ignore_eos"], body["stop_token_ids"], body["top_k"]) == (False, [5], 4)
    assert body["logit_bias"] == {"3": 1.5, "9": -100.0}
    assert body["return_token_ids"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert "cache_salt" not in body
    assert "priority" not in body


@pytest.mark.parametrize(
    "make", [lambda request: vllm_wire.whole_body(request, "m"), sglang_wire.generate_body]
)
def test_a_bad_word_of_several_tokens_is_refused(make: Any) -> None:
    with pytest.raises(InvalidRequestError, match="bad_words"):
        make(request_of(1, bad_words=((1, 2),)))


LIMITED = ReasoningSpec(start=(5,), end=(6,), max_tokens=9)


def test_a_limit_on_reasoning_is_vllms_to_keep_and_beyond_sglang() -> None:
    assert vllm_wire.whole_body(request_of(1, reasoning=LIMITED), "m")["thinking_token_budget"] == 9
    assert "thinking_token_budget" not in vllm_wire.whole_body(request_of(1), "m")
    with pytest.raises(InvalidRequestError, match="not taken by this model's engine") as refusal:
        sglang_wire.generate_body(request_of(1, reasoning=LIMITED))
    assert refusal.value.param == "thinking_token_budget"


def test_a_context_that_is_too_long_is_told_as_ours() -> None:
    error = to_error(
        400, b'{"error": {"message": "maximum context length is 512 tokens", "param": "prompt"}}'
    )

    assert type(error) is ContextLengthError
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")


@pytest.mark.parametrize("kind", KINDS)
def test_load_and_description(kind: str) -> None:
    async def whole() -> None:
        async with http_bench(kind) as bench:
            bench.server.running, bench.server.waiting = 3, 2
            await bench.until(lambda: bench.worker.load.running == 3)
            load, told = bench.worker.load, bench.worker.description
            assert told is not None

            assert (load.waiting, load.total_blocks, load.free_blocks) == (2, 100, 75)
            assert (told.engine, told.model.name, told.model.path) == (kind, "lab/letters", "/models/letters")
            assert (told.model.max_model_len, told.model.eos_token_ids, told.model.kv_tokens) == (
                512,
                (2,),
                1600,
            )

    asyncio.run(whole())


def test_another_vllm_at_the_same_address_is_another_worker() -> None:
    async def whole() -> None:
        async with http_bench("vllm") as bench:
            before = bench.worker.incarnation
            bench.server.started_at += 100.0  # type: ignore[attr-defined]
            await bench.until(lambda: bench.worker.incarnation != before)
            await bench.until(lambda: bench.worker.state == "ready")

    asyncio.run(whole())


def test_an_engine_that_says_it_is_ill_is_lost() -> None:
    async def whole() -> None:
        async with http_bench("vllm") as bench:
            bench.server.is_healthy = False
            await bench.until(lambda: bench.worker.state == "lost")
            bench.server.is_healthy = True
            await bench.until(lambda: bench.worker.state == "ready")

    asyncio.run(whole())


def test_metrics_are_summed_over_their_labels() -> None:
    readings = read_metrics(
        '# HELP vllm:x y\nvllm:x{engine="0"} 2.0\nvllm:x{engine="1"} 3.0\nvllm:h_bucket{le="1"} 9\n'
        'other 1\nvllm:t_total{a="b\\"c"} 1.5e+03\n',
        "vllm:",
    )

    assert dict(readings.totals) == {"vllm:x": 5.0, "vllm:t_total": 1500.0}
    assert readings.count("vllm:t") == 1500
    assert readings.count("vllm:none") == 0
