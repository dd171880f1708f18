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
