"""What vLLM computes and counts, through our gateway and asked directly: the same."""

import json
from random import Random
from typing import Any

import pytest

from atomesh.testing.raw_http import connect, request_bytes

Live = Any  # tests/live/conftest.py, which cannot be imported by name
PATH = "/v1/completions"
STORY = [504, 2838, 282, 260, 2240, 282, 8498]
BLOCK = 128  # of vLLM on a CPU
NEAR = 1e-3  # between two computations of a logprob


def fresh(length: int, seed: int) -> list[int]:
    return Random(seed).choices(range(1000, 40000), k=length)


def ids_of(answer: Any) -> list[list[int]]:
    return [choice["token_ids"] for choice in answer["choices"]]


def both(live: Live, prompt: list[int], **fields: Any) -> tuple[Any, Any]:
    return live.ask(prompt, return_token_ids=True, **fields), live.ask_vllm(prompt, **fields)


def test_the_model_is_vllm_s_with_its_context(live: Live) -> None:
    ours, theirs = (live.list_models(url) for url in (live.gateway, live.vllm))
    assert [(one["id"], one["max_model_len"]) for one in ours] == [
        (one["id"], one["max_model_len"]) for one in theirs
    ]
    assert live.get(live.gateway, "/health").status == 200


def test_prompt_and_answer_are_the_same_token_ids(live: Live) -> None:
    ours, theirs = both(live, STORY, max_tokens=16)
    assert ids_of(ours) == ids_of(theirs)
    assert ours["choices"][0]["text"] == theirs["choices"][0]["text"]
    assert ours["choices"][0]["prompt_token_ids"] == theirs["choices"][0]["prompt_token_ids"] == STORY


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 11, "temperature": 1.2},
        {"seed": 11, "temperature": 0.8, "n": 3, "top_p": 0.9},
        {"seed": 11, "temperature": 1.0, "top_k": 5, "min_p": 0.01},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.3, "max_tokens": 24},
        {"allowed_token_ids": [504, 282, 28], "max_tokens": 6},
        {"logit_bias": {"504": 100}, "max_tokens": 4},
        {"min_tokens": 8, "logit_bias": {"2": 5}},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_sampling_is_asked_as_it_was_meant(live: Live, fields: dict[str, Any]) -> None:
    ours, theirs = both(live, STORY, **fields)
    assert ids_of(ours) == ids_of(theirs)


def test_a_bias_and_a_bad_word_decide(live: Live) -> None:
    [[first, *_]] = ids_of(live.ask(STORY, return_token_ids=True))
    word = live.detokenize([first])
    [[other, *_]] = ids_of(live.ask(STORY, return_token_ids=True, bad_words=[word.strip()]))
    assert other != first
    assert ids_of(live.ask(STORY, return_token_ids=True, logit_bias={"504": 100})) == [[504] * 8]


def test_logprobs_are_vllm_s(live: Live) -> None:
    ours, theirs = both(live, STORY, logprobs=3, return_tokens_as_token_ids=True)
    mine, yours = (answer["choices"][0]["logprobs"] for answer in (ours, theirs))
    assert mine["tokens"] == yours["tokens"]
    assert mine["token_logprobs"] == pytest.approx(yours["token_logprobs"], abs=NEAR)
    for our_top, their_top in zip(mine["top_logprobs"], yours["top_logprobs"], strict=True):
        assert our_top == pytest.approx({name: their_top[name] for name in our_top}, abs=NEAR)


def test_prompt_logprobs_are_vllm_s(live: Live) -> None:
    ours, theirs = (
        answer["choices"][0]["prompt_logprobs"] for answer in both(live, STORY, prompt_logprobs=2)
    )
    assert ours[0] is theirs[0] is None
    for mine, yours in zip(ours[1:], theirs[1:], strict=True):
        assert {name: entry["rank"] for name, entry in mine.items()} == {
            name: entry["rank"] for name, entry in yours.items()
        }
        assert {name: entry["logprob"] for name, entry in mine.items()} == pytest.approx(
            {name: entry["logprob"] for name, entry in yours.items()}, abs=NEAR
        )


def test_a_stop_string_is_ours_and_ends_where_vllm_s_does(live: Live) -> None:
    full = live.ask(STORY, max_tokens=24)["choices"][0]["text"]
    stop = full[9:13]
    ours, theirs = both(live, STORY, max_tokens=24, stop=[stop])
    assert ours["choices"][0]["text"] == theirs["choices"][0]["text"] == full[: full.index(stop)]
    assert ours["choices"][0]["finish_reason"] == theirs["choices"][0]["finish_reason"] == "stop"


def test_a_stop_token_is_named(live: Live) -> None:
    [[_, _, third, *_]] = ids_of(live.ask(STORY, return_token_ids=True))
    ours, theirs = both(live, STORY, stop_token_ids=[third])
    assert ours["choices"][0]["stop_reason"] == theirs["choices"][0]["stop_reason"] == third


def test_usage_of_a_stream_counts_what_came(live: Live) -> None:
    *spoken, last = live.stream(STORY, max_tokens=9, n=2, temperature=1, seed=3)
    came = sum(len(choice["token_ids"]) for chunk in spoken for choice in chunk["choices"])
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (len(STORY), came)


def test_cached_tokens_are_vllm_s_whole_blocks(live: Live) -> None:
    prompt = fresh(3 * BLOCK, seed=live.started)
    cached = [live.ask(prompt)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
    assert cached == [0, 2 * BLOCK]  # of a prompt that is all cached the last block is computed again


@pytest.mark.parametrize("salt", ["other", "with/what@vllm\\refuses", "x" * 300])
def test_a_salt_keeps_prefixes_apart(live: Live, salt: str) -> None:
    prompt = fresh(2 * BLOCK + 1, seed=live.started + len(salt))
    live.ask(prompt)
    cached = [
        live.ask(prompt, cache_salt=salt)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)
    ]
    assert cached == [0, 2 * BLOCK]


def test_vllm_counts_each_prompt_once(live: Live) -> None:
    urls = sorted({live.vllm, live.decode})
    before = [live.readings(url).count("vllm:prompt_tokens") for url in urls]
    live.ask(fresh(50, seed=1))
    after = [live.readings(url).count("vllm:prompt_tokens") for url in urls]
    assert [later - earlier for earlier, later in zip(before, after, strict=True)] == [50] * len(urls)


def test_the_gateway_shows_vllm_s_load(live: Live) -> None:
    with connect(live.gateway) as connection:
        connection.sendall(live.stream_request(STORY, max_tokens=600))
        live.until(lambda: live.load()["running"] == 1)
    live.until(lambda: live.load()["running"] == 0)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_vllm_stops_when_the_client_leaves(live: Live, is_streamed: bool) -> None:
    before = live.readings().count("vllm:generation_tokens")
    with connect(live.gateway) as connection:
        connection.sendall(live.stream_request(STORY, max_tokens=1900, stream=is_streamed))
        live.until(lambda: live.readings().count("vllm:num_requests_running") == 1)
    live.until(lambda: live.readings().count("vllm:num_requests_running") == 0)
    assert live.readings().count("vllm:generation_tokens") - before < 1000
    assert live.readings().totals["vllm:kv_cache_usage_perc"] == 0


def test_refusals_of_vllm_s_are_in_our_words_and_shape(live: Live) -> None:
    limit = live.list_models(live.gateway)[0]["max_model_len"]
    response = live.send([65] * limit)
    assert (response.status, response.error["code"]) == (400, "context_length_exceeded")
    for fields, param in (
        ({"bad_words": ["antidisestablishmentarianism"]}, "bad_words"),
        ({"logprobs": 6}, "logprobs"),
        ({"top_p": 0}, "top_p"),
        ({"prompt": [10**6]}, "prompt"),
    ):
        response = live.send(**{"prompt": STORY, **fields})
        assert (response.status, response.error["param"]) == (400, param)


def test_the_gateway_s_metrics_are_of_this_model(live: Live) -> None:
    readings = live.readings(live.gateway)
    before = readings.count("vllm:generation_tokens")
    live.ask(STORY, max_tokens=5, ignore_eos=True)
    assert live.readings(live.gateway).count("vllm:generation_tokens") - before == 5
    assert readings.labels["vllm:generation_tokens_total"]["model_name"] == live.model


def test_the_time_in_vllm_is_told(live: Live) -> None:
    timing = live.send(STORY).headers["server-timing"]
    assert all(part in timing for part in ("queue;dur=", "prefill;dur=", "decode;dur="))


def test_a_request_is_read_whole_or_not_at_all(live: Live) -> None:
    body = json.dumps({"model": live.model, "prompt": STORY, "max_tokens": 4}).encode()
    with connect(live.gateway) as connection:
        connection.sendall(request_bytes("POST", PATH, body)[:-5])
    assert live.get(live.gateway, "/ready").status == 200
