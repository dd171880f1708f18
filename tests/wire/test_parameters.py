"""Each sampling parameter does over HTTP what it says: seen in the token ids of a real model."""

from typing import Any

import pytest

from atomesh.frontend.validation import refused_fields
from atomesh.testing.raw_http import RawResponse, send
from atomesh.testing.served_process import ServedProcess
from atomesh.testing.wire import ScriptedWire

PROMPT = "The capital of France is"
GREEDY = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "return_token_ids": True}


def post(url: str, fields: dict[str, Any]) -> RawResponse:
    return send(url, "POST", "/v1/completions", fields)


@pytest.fixture(scope="module")
def url(default_server: ServedProcess) -> str:
    return default_server.url


def choose(url: str, **fields: Any) -> dict[str, Any]:
    response = post(url, {**GREEDY, **fields})
    assert response.status == 200, response.body
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


@pytest.fixture(scope="module")
def greedy(url: str) -> list[int]:
    ids: list[int] = choose(url)["token_ids"]
    assert len(ids) == 6
    return ids


@pytest.mark.parametrize(
    "fields",
    [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}],
    ids=lambda fields: next(iter(fields)),
)
def test_a_choice_of_one_is_greedy(url: str, greedy: list[int], fields: dict[str, Any]) -> None:
    hot = {"temperature": 2.0, "seed": 7}
    assert choose(url, **hot)["token_ids"] != greedy
    assert choose(url, **hot, **fields)["token_ids"] == greedy


def test_top_k_of_minus_one_and_zero_are_no_limit(url: str) -> None:
    one, other = (choose(url, temperature=1.5, seed=3, top_k=top_k) for top_k in (-1, 0))
    assert one["token_ids"] == other["token_ids"] == choose(url, temperature=1.5, seed=3)["token_ids"]


def test_only_allowed_ids_are_said(url: str, greedy: list[int]) -> None:
    allowed = [5, 6, 7]
    assert not set(greedy) & set(allowed)
    assert set(choose(url, allowed_token_ids=allowed)["token_ids"]) <= set(allowed)


def test_a_bias_forces_and_forbids(url: str, greedy: list[int]) -> None:
    assert choose(url, logit_bias={"5": 100})["token_ids"] == [5] * 6
    assert choose(url, logit_bias={str(greedy[0]): -100})["token_ids"][0] != greedy[0]


def test_a_bad_word_is_not_said(url: str, greedy: list[int]) -> None:
    first = choose(url, max_tokens=1)["text"]
    assert first.strip()
    assert choose(url, max_tokens=1, bad_words=[first.strip()])["token_ids"] != greedy[:1]


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_penalties_lead_away_from_what_was_said_or_back_to_it(url: str, name: str) -> None:
    few = {"allowed_token_ids": list(range(300, 340)), "max_tokens": 40}
    more, fewer = (len(set(choose(url, **few, **{name: size})["token_ids"])) for size in (2.0, -2.0))
    assert more > fewer


def test_a_strong_repetition_penalty_repeats_nothing(url: str) -> None:
    ids = choose(url, max_tokens=24, repetition_penalty=50.0)["token_ids"]
    assert len(set(ids)) == len(ids)


def test_min_tokens_holds_off_a_stop(url: str, greedy: list[int]) -> None:
    stop = {"stop_token_ids": [greedy[0]]}
    assert choose(url, **stop)["token_ids"] == greedy[:1]
    held = choose(url, **stop, min_tokens=3)
    assert len(held["token_ids"]) >= 3
    assert greedy[0] not in held["token_ids"][:3]


def test_ignore_eos_goes_on_past_the_end(url: str) -> None:
    end = {"logit_bias": {str(end_id(url)): 100}}
    ended = choose(url, **end)
    assert (ended["finish_reason"], ended["text"]) == ("stop", "")
    on = choose(url, **end, ignore_eos=True)
    assert (on["finish_reason"], on["token_ids"]) == ("length", [end_id(url)] * 6)


def end_id(url: str) -> int:
    end = send(url, "GET", "/tokenizer_info").json()["eos_token"]
    [token] = send(url, "POST", "/tokenize", {"prompt": end, "add_special_tokens": False}).json()["tokens"]
    assert isinstance(token, int)
    return token


def test_special_tokens_are_shown_on_demand(url: str) -> None:
    end = send(url, "GET", "/tokenizer_info").json()["eos_token"]
    fields = {"logit_bias": {str(end_id(url)): 100}, "ignore_eos": True, "max_tokens": 2}
    assert choose(url, **fields)["text"] == ""
    assert choose(url, **fields, skip_special_tokens=False)["text"] == end * 2


def test_a_stop_string_is_shown_on_demand(url: str) -> None:
    text = choose(url)["text"]
    stop = text.strip().split()[0]
    assert choose(url, stop=[stop, "never"])["text"] == text[: text.index(stop)]
    shown = choose(url, stop=[stop, "never"], include_stop_str_in_output=True)
    assert shown["text"] == text[: text.index(stop) + len(stop)]
    assert (shown["finish_reason"], shown["stop_reason"]) == ("stop", stop)


def test_another_salt_finds_nothing_cached(url: str) -> None:
    prompt = "salt " * 200

    def cached(salt: str) -> int:
        body = post(url, {**GREEDY, "prompt": prompt, "max_tokens": 1, "cache_salt": salt}).json()
        found: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    assert [cached("one"), cached("one") > 0, cached("two")] == [0, True, 0]


def test_an_openapi_document_is_served(url: str) -> None:
    document = send(url, "GET", "/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert "post" in document["paths"]["/v1/chat/completions"]


@pytest.mark.parametrize("name", sorted(refused_fields()))
def test_every_refused_field_is_named(scripted: ScriptedWire, name: str) -> None:
    response = post(scripted.url, {"prompt": "a", "max_tokens": 1, name: {"a": 1}})
    assert (response.status, response.error["param"]) == (400, name)
    assert response.error["message"].startswith(name)
    assert post(scripted.url, {"prompt": "a", "max_tokens": 1, name: None}).status == 200
