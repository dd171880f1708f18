"""What the mesh reads of a request in text."""

import msgspec
from starlette.datastructures import Headers

from atomesh.mesh.gateway.text_request import MAX_WORDS, for_server, parse_fields, stand_in, words_of


def stood_in(**fields: object) -> list[int]:
    return stand_in(parse_fields(msgspec.json.encode(fields)), Headers()).prompt_token_ids


def test_four_bytes_are_a_token_and_the_same_ones_the_same_token() -> None:
    assert words_of(b"") == []
    assert words_of(b"abcd\x01") == [int.from_bytes(b"abcd", "little"), 1]
    assert len(stood_in(prompt="x" * 398)) == 100

    one, other = stood_in(prompt="begin " * 20 + "a"), stood_in(prompt="begin " * 20 + "b")
    assert one[:30] == other[:30]
    assert one != other


def test_of_a_text_beyond_all_contexts_only_the_beginning_is_read() -> None:
    """A body of 16 MiB would be four million numbers."""
    assert len(words_of(b"abcd" * MAX_WORDS)) == len(words_of(b"abcd" * (MAX_WORDS + 1))) == MAX_WORDS


def test_a_picture_is_no_text() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    message = {"role": "user", "content": [{"type": "text", "text": "what is this?"}, picture]}

    assert len(stood_in(messages=[message])) < 50


def test_its_own_words_for_placement() -> None:
    words = {"prompt": "x", "priority": -3, "prompt_cache_key": "me", "max_tokens": 7, "cache_salt": "s"}
    fields = parse_fields(msgspec.json.encode(words))
    request = stand_in(fields, Headers({"x-placement-policy": "session"}))

    assert (request.policy, request.priority, request.cache_salt) == ("session", -3, "s")
    assert request.sampling.max_tokens == 7
    assert request.session == stand_in(fields, Headers()).session != ""


def test_what_is_of_the_wrong_kind_is_as_if_it_were_not_there() -> None:
    fields = parse_fields(b'{"prompt":5,"priority":"high","prompt_cache_key":[1],"max_tokens":-2}')
    request = stand_in(fields, Headers())

    assert (request.priority, request.session, request.sampling.max_tokens) == (0, "", 1)
    assert parse_fields(b"[1]") == parse_fields(b"\xff") == {}


def test_the_server_reads_its_own_name_and_only_the_priority_that_may_be_set() -> None:
    fields = parse_fields(b'{"model":"alias","priority":1,"x":{"y":[1.50]}}')

    allowed = for_server(fields, "large", may_set_priority=True)
    assert allowed == b'{"model":"large","priority":1,"x":{"y":[1.50]}}'
    assert for_server(fields, "large", may_set_priority=False) == allowed.replace(b'"priority":1,', b"")
