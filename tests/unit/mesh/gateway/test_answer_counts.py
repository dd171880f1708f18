"""Usage as OpenAI's routes write it, found at the end of an answer and nowhere in its texts."""

import pytest

from atomesh.mesh.dispatch.text_ask import TextUsage
from atomesh.mesh.gateway.answer_counts import TEMPLATE_TOKENS, believable, finish_reasons_in, usage_in


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (b'{"usage":{"prompt_tokens":3,"completion_tokens":2}}', TextUsage(2, 3)),
        (b'{"usage" : {"prompt_tokens": 3, "total_tokens": 3}}', TextUsage(0, 3)),
        (
            b'{"response":{"tools":[{"usage":{"type":"object"}}],"usage":'
            b'{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":1}}}',
            TextUsage(1, 9, 4),
        ),
        (
            b'{"usage":{"input_tokens":5,"cache_creation_input_tokens":2,"cache_read_input_tokens":3,'
            b'"output_tokens":1}}',
            TextUsage(1, 10, 3),
        ),
        (
            b'{"usage":{"prompt_tokens":9,"cache_read_input_tokens":3,"completion_tokens":1}}',
            TextUsage(1, 9),
        ),
        (b'data: {"usage":{"prompt_tokens":1}}\n\ndata: {"usage":null}\n\n', TextUsage(0, 1)),
        (b'{"text":"\\"usage\\":{\\"prompt_tokens\\":99}"}', None),
        (b'{"usage":{"prompt_tokens":-1}}', None),
        (b'{"usage":{"prompt_tokens":true}}', None),
        (b'{"usage":{"prompt_tok', None),
        (b"", None),
    ],
)
def test_usage(answer: bytes, usage: TextUsage | None) -> None:
    assert usage_in(answer) == usage


def test_the_last_word_counts() -> None:
    answer = b"".join(b'{"usage":{"prompt_tokens":3,"completion_tokens":%d}}' % n for n in range(1, 8))

    assert usage_in(answer) == TextUsage(7, 3)


def test_finish_reasons_are_in_our_words() -> None:
    reasons = (b"null", b'"length"', b'"tool_calls"', b'"stop"')
    answer = b" ".join(b'"finish_reason": ' + reason for reason in reasons)

    assert finish_reasons_in(answer) == ["length", "stop", "stop"]


def test_anthropic_s_reasons_are_in_our_words_too() -> None:
    words = (b"null", b'"end_turn"', b'"max_tokens"', b'"tool_use"', b'"###"', b"7")
    answer = b" ".join(b'"stop_reason": ' + word for word in words)

    assert finish_reasons_in(answer) == ["stop", "length", "stop"]


def test_no_token_has_less_than_a_byte() -> None:
    told = TextUsage(2**40 - 1, 2**40 - 1, 99_999_999)

    assert believable(told, asked_bytes=30, passed_bytes=12) == TextUsage(12, 30 + TEMPLATE_TOKENS, 4126)
    assert believable(TextUsage(2, 3, 1), 30, 12) == TextUsage(2, 3, 1)
    assert believable(TextUsage(9, None), 30, 5) == TextUsage(5, None)
