"""Token ids to text as they come; bytes that are not yet a whole character wait for the next token."""

import codecs
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atomesh.frontend.text.tokenizer import Tokenizer


class Detokenizer:
    """Text that continues a prompt: joined, the tokens' bytes decoded at once, an invalid part as U+FFFD."""

    def __init__(
        self, tokenizer: "Tokenizer", *, skip_special_tokens: bool, shown: Collection[int] = ()
    ) -> None:
        """`shown` are special tokens that are never skipped."""
        self._tokenizer = tokenizer
        self._shown = shown
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_amid_character = False

    def push(self, token_id: int) -> str:
        """The characters that `token_id` completes; a skipped special token adds nothing."""
        if self._skip_special_tokens and self._tokenizer.is_special(token_id) and token_id not in self._shown:
            return ""
        spelled = self._tokenizer.token_bytes(token_id)
        if spelled.isascii() and not self._is_amid_character:
            return spelled.decode()
        text = self._decoder.decode(spelled)
        self._is_amid_character = self._decoder.getstate()[0] != b""
        return text

    def flush(self) -> str:
        """U+FFFD for bytes that were never completed, else nothing."""
        return self._decoder.decode(b"", final=True)
