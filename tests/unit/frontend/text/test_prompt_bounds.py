import pytest

from atomesh.errors import ContextLengthError
from atomesh.frontend.text.prompt_bounds import PromptBounds
from atomesh.testing.byte_tokenizer import ByteTokenizer


def test_a_text_that_can_never_fit_is_refused_untokenised() -> None:
    bounds = PromptBounds()
    tokenizer = ByteTokenizer()
    longest = len("<|start|>")
    bounds.check_characters(longest * 9, tokenizer, max_model_len=10)
    with pytest.raises(ContextLengthError, match="maximum context length is 10 tokens"):
        bounds.check_characters(longest * 9 + 1, tokenizer, max_model_len=10)


def test_of_a_text_to_truncate_its_end_is_kept() -> None:
    bounds, tokenizer = PromptBounds(), ByteTokenizer()
    longest = len("<|start|>")
    text = "".join(map(chr, range(0x100, 0x1100)))
    assert bounds.keep_end(text, len(text), tokenizer) == text
    assert bounds.keep_end(text, 10, tokenizer) == text[-(10 + 256) * longest :]
