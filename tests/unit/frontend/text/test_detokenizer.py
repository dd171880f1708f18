from atomesh.frontend.text.detokenizer import Detokenizer
from atomesh.testing.byte_tokenizer import END, ByteTokenizer


def test_bytes_wait_until_they_are_a_character() -> None:
    detokenizer = Detokenizer(ByteTokenizer(), skip_special_tokens=True)
    assert [detokenizer.push(byte) for byte in "é".encode()] == ["", "é"]
    assert detokenizer.flush() == ""


def test_a_skipped_token_does_not_break_a_character() -> None:
    first, second = "é".encode()
    skipping = Detokenizer(ByteTokenizer(), skip_special_tokens=True)
    assert [skipping.push(token_id) for token_id in (first, END, second)] == ["", "", "é"]
    showing = Detokenizer(ByteTokenizer(), skip_special_tokens=False)
    assert [showing.push(token_id) for token_id in (first, END, second)] == ["", "\ufffd<|end|>", "\ufffd"]


def test_an_unknown_id_adds_nothing() -> None:
    detokenizer = Detokenizer(ByteTokenizer(), skip_special_tokens=True)
    assert detokenizer.push(5000) == ""
