"""What a live vLLM 0.32 was found to want and to say, on the double that does the same."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from atomesh.errors import InvalidRequestError
from atomesh.mesh.backends.foreign_errors import to_error
from atomesh.mesh.backends.vllm_wire import MAX_SALT_LENGTH, vllm_salt, whole_body
from atomesh.protocol.generation import Timings, TokenDelta, TokenLogprobs
from atomesh.testing.backend_bench import HttpBench, http_bench, read_all, request_of
from atomesh.testing.fake_engine_server import Speech


def answer(
    speech: Speech, *prompt: int, salt: str = "", prepare: Any = None, **fields: Any
) -> list[TokenDelta]:
    async def whole() -> list[TokenDelta]:
        async with http_bench("vllm") as bench:
            bench.says(speech)
            if prepare is not None:
                prepare(bench)
            return await read_all(bench.submit(replace(request_of(*prompt, **fields), cache_salt=salt)))

    return asyncio.run(whole())


@pytest.mark.parametrize("prompt_logprobs", [None, 1])
def test_a_prompt_without_an_answer_is_asked_with_one_and_shown_without(prompt_logprobs: int | None) -> None:
    fields = {"prompt_logprobs": prompt_logprobs, "logprobs": prompt_logprobs}
    [delta] = answer(Speech([11], finish="stop", stop_token=11, cached=1), 5, 6, max_tokens=0, **fields)

    assert (delta.token_ids, delta.logprobs, delta.finish_reason) == ([], None, "length")
    assert (delta.stop_token_id, delta.cached_tokens) == (None, 1)
    expected = [None, TokenLogprobs(6, -0.06, 1, [(6, -0.06)])]
    assert delta.prompt_logprobs == (None if prompt_logprobs is None else expected)


def test_the_double_refuses_what_vllm_refuses() -> None:
    async def whole() -> None:
        async with http_bench("vllm") as bench:
            for field, value in (("max_tokens", 0), ("cache_salt", "a/b"), ("cache_salt", "a" * 129)):
                body = {**whole_body(request_of(1), "m"), field: value}
                client = bench.backend.client  # type: ignore[attr-defined]
                with pytest.raises(InvalidRequestError) as caught:
                    async with client.ask("POST", "/v1/completions", msgspec.json.encode(body)):
                        pass
                assert caught.value.param == field

    asyncio.run(whole())


@pytest.mark.parametrize("salt", ["a", "4:team:x", "a" * MAX_SALT_LENGTH, "ä b~"])
def test_salts_that_vllm_takes_go_as_they_are(salt: str) -> None:
    assert vllm_salt(salt) == salt


@pytest.mark.parametrize(
    "salt", ["a/b", "a@b", "a\\b", "a\0b", "a" * (MAX_SALT_LENGTH + 1), "blake2b:" + "0" * 64]
)
def test_others_go_as_their_digest_which_no_other_salt_can_name(salt: str) -> None:
    sent = vllm_salt(salt)

    assert sent.startswith("blake2b:")
    assert len(sent) == len("blake2b:") + 64
    assert vllm_salt(sent) != sent
    assert vllm_salt(salt + "x") != sent
    assert [delta.token_ids for delta in answer(Speech([11]), 1, salt=salt)] == [[11]]


def test_times_come_with_the_end_of_one_choice_alone() -> None:
    one = answer(Speech([11, 12]), 1)
    two = answer(Speech([11, 12]), 1, n=2)

    assert [delta.timings for delta in one] == [None, Timings(0.25, 0.5)]
    assert {delta.timings for delta in two} == {None}


def test_what_vllm_was_not_started_to_tell_is_not_told() -> None:
    def mute(bench: HttpBench) -> None:
        bench.server.tells_times = bench.server.tells_cached = False  # type: ignore[attr-defined]

    deltas = answer(Speech([11, 12], cached=48), 1, prepare=mute)

    assert [(delta.timings, delta.cached_tokens) for delta in deltas] == [(None, None)] * 2


def test_a_field_of_the_body_is_named_without_the_body() -> None:
    error = to_error(400, b'{"error": {"message": "1 validation error", "param": "body.seed", "code": 400}}')

    assert (type(error), getattr(error, "param", "")) == (InvalidRequestError, "seed")
