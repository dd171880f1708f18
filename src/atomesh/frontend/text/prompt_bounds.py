"""Refuses a text that cannot fit into the context, before time and memory go into tokenising it."""

from weakref import WeakKeyDictionary

from atomesh.errors import ContextLengthError
from atomesh.frontend.text.tokenizer import Tokenizer

_SEAM = 256  # tokens after a cut in a text before they are surely those of the whole text


class PromptBounds:
    def __init__(self) -> None:
        self._longest: WeakKeyDictionary[Tokenizer, int] = WeakKeyDictionary()

    def check_characters(
        self, characters: int, tokenizer: Tokenizer, max_model_len: int, *, param: str = "prompt"
    ) -> None:
        """Raises ContextLengthError when even the vocabulary's longest token, repeated, would not fit."""
        if characters < max_model_len:
            return
        least_tokens = -(-characters // self._longest_token(tokenizer))
        if least_tokens >= max_model_len:
            raise ContextLengthError(
                f"the prompt has {characters} characters, at least {least_tokens} tokens; "
                f"this model's maximum context length is {max_model_len} tokens: send a shorter prompt",
                param=param,
            )

    def keep_end(self, text: str, tokens: int, tokenizer: Tokenizer) -> str:
        """As much of the end of `text` as its last `tokens` tokens may come from."""
        if len(text) <= tokens:
            return text
        return text[-(tokens + _SEAM) * self._longest_token(tokenizer) :]

    def _longest_token(self, tokenizer: Tokenizer) -> int:
        if tokenizer not in self._longest:
            sizes = (len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.vocab_size))
            self._longest[tokenizer] = max(max(sizes, default=1), 1)
        return self._longest[tokenizer]
