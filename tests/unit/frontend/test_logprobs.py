import math

import pytest

from atomesh.frontend.logprobs import (
    LEAST_LOGPROB,
    CompletionLogprobsWriter,
    RankedLogprob,
    chat_logprobs,
    prompt_logprobs,
    token_names,
)
from atomesh.protocol.generation import TokenLogprobs
from atomesh.testing.byte_tokenizer import BOS, END, ByteTokenizer

TOKENIZER = ByteTokenizer()
NAMES = token_names(TOKENIZER, as_ids=False)
IDS = token_names(TOKENIZER, as_ids=True)


def entry(token_id: int, logprob: float = -1.0, top: list[tuple[int, float]] | None = None) -> TokenLogprobs:
    return TokenLogprobs(token_id, logprob, 1, top or [])


def test_chat_entries_carry_bytes_and_minus_infinity_is_written_as_a_number() -> None:
    (token,) = chat_logprobs(TOKENIZER, NAMES, [entry(0xC3, -math.inf, [(97, -0.5), (0xC3, -math.inf)])])[
        "content"
    ]
    assert (token.token, token.logprob, token.bytes) == ("\ufffd", LEAST_LOGPROB, [0xC3])
    assert [(top.token, top.logprob, top.bytes) for top in token.top_logprobs] == [
        ("a", -0.5, [97]),
        ("\ufffd", LEAST_LOGPROB, [0xC3]),
    ]


def test_of_equal_strings_the_likelier_is_kept() -> None:
    writer = CompletionLogprobsWriter(TOKENIZER, NAMES, 2, skip_special_tokens=True)
    part = writer.answer(
        [entry(0x80, -3.0, [(0xFF, -0.25), (0xFE, -2.0)]), entry(97, -1.0, [(97, -1.0), (98, -1.0)])]
    )
    assert part.top_logprobs == [{"\ufffd": -0.25}, {"a": -1.0, "b": -1.0}]
    assert part.token_logprobs == [-3.0, -1.0]


def test_the_token_itself_is_told_beside_the_likeliest_asked_for() -> None:
    writer = CompletionLogprobsWriter(TOKENIZER, NAMES, 1, skip_special_tokens=True)
    part = writer.answer([entry(99, -5.0, [(97, -1.0), (98, -2.0)])])
    assert part.top_logprobs == [{"a": -1.0, "c": -5.0}]


def test_offsets_count_characters_over_split_ones() -> None:
    writer = CompletionLogprobsWriter(TOKENIZER, NAMES, 0, skip_special_tokens=True)
    text = "aé世b"
    part = writer.answer([entry(byte) for byte in text.encode()])
    assert part.text_offset == [0, 1, 1, 2, 2, 2, 3]


def test_offsets_count_what_is_no_character() -> None:
    writer = CompletionLogprobsWriter(TOKENIZER, NAMES, 0, skip_special_tokens=True)
    octets = b"\x80a\xe4b\xff\xffc"
    assert octets.decode("utf-8", "replace") == "\ufffda\ufffdb\ufffd\ufffdc"
    assert writer.answer([entry(byte) for byte in octets]).text_offset == [0, 1, 2, 3, 4, 5, 6]


def test_a_space_that_only_the_tokens_have_is_not_counted() -> None:
    writer = CompletionLogprobsWriter(TOKENIZER, NAMES, 0, skip_special_tokens=True)
    prompt = writer.prompt("hi", [BOS, *b" hi"], [None, entry(32), entry(104), entry(105)])
    assert prompt.text_offset == [0, 0, 0, 1]
    shown = writer.prompt("<s> hi", [BOS, *b" hi"], [None, entry(32), entry(104), entry(105)])
    assert shown.text_offset == [0, 3, 4, 5]


def test_an_answer_s_offsets_go_on_after_the_echoed_prompt() -> None:
    writer = CompletionLogprobsWriter(TOKENIZER, NAMES, 0, skip_special_tokens=True)
    prompt = writer.prompt("hi", [BOS, *b"hi"], [None, entry(104), entry(105)])
    answer = writer.answer([entry(97), entry(END), entry(98)])
    joined = prompt.joined(answer)
    assert joined.tokens == ["<s>", "h", "i", "a", "<|end|>", "b"]
    assert joined.text_offset == [0, 0, 1, 2, 3, 3]
    assert joined.token_logprobs == [None, -1.0, -1.0, -1.0, -1.0, -1.0]
    assert joined.top_logprobs[0] is None


def test_a_special_token_written_out_in_the_prompt_has_its_length() -> None:
    writer = CompletionLogprobsWriter(TOKENIZER, NAMES, 0, skip_special_tokens=True)
    part = writer.prompt("<s>a", [BOS, 97], [None, entry(97)])
    assert part.text_offset == [0, 3]


def test_a_prompt_and_its_entries_must_have_one_length() -> None:
    writer = CompletionLogprobsWriter(TOKENIZER, NAMES, 0, skip_special_tokens=True)
    with pytest.raises(ValueError, match="zip"):
        writer.prompt("ab", [97, 98], [None])


def test_prompt_logprobs_hold_the_token_once() -> None:
    told = prompt_logprobs(TOKENIZER, [None, TokenLogprobs(98, -2.0, 2, [(97, -1.0), (98, -2.0)])])
    assert told == [None, {"98": RankedLogprob(-2.0, 2, "b"), "97": RankedLogprob(-1.0, 1, "a")}]


def test_chat_tokens_named_by_id_keep_their_bytes() -> None:
    (token,) = chat_logprobs(TOKENIZER, IDS, [entry(0xC3, -1.0, [(97, -0.5)])])["content"]
    assert (token.token, token.bytes) == ("token_id:195", [0xC3])
    assert [(top.token, top.bytes) for top in token.top_logprobs] == [("token_id:97", [97])]


def test_completion_tokens_named_by_id_are_all_told_and_offsets_stay_the_text_s() -> None:
    writer = CompletionLogprobsWriter(TOKENIZER, IDS, 2, skip_special_tokens=True)
    prompt = writer.prompt("hi", [BOS, *b"hi"], [None, entry(104), entry(105)])
    part = prompt.joined(writer.answer([entry(0x80, -3.0, [(0xFF, -0.25), (0xFE, -2.0)])]))
    assert part.tokens == ["token_id:256", "token_id:104", "token_id:105", "token_id:128"]
    assert part.top_logprobs[-1] == {"token_id:255": -0.25, "token_id:254": -2.0, "token_id:128": -3.0}
    assert part.text_offset[:3] == [0, 0, 1]
