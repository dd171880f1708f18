"""One choice's tokens to the text that a client may see: whole characters, up to the first stop string."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from atomesh.frontend.text.detokenizer import Detokenizer
from atomesh.frontend.text.stop_strings import StopSearch

if TYPE_CHECKING:
    from atomesh.frontend.text.tokenizer import Tokenizer


class TextPiece(msgspec.Struct, frozen=True):
    """`stop` is the stop string that ended the text with this piece.

    `tokens_used` counts the tokens of this push up to the one that completed the stop string; without one,
    all of them.
    """

    text: str
    stop: str | None
    tokens_used: int


class TextStream:
    """The joined pieces are the whole text, decoded at once and cut at the first stop string, byte for byte.

    A piece never ends within a character, and holds back only the longest end that may still become a stop
    string. A stop string that ends in the text of the first `min_tokens` tokens is none.
    """

    def __init__(
        self,
        tokenizer: "Tokenizer",
        *,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
        shown_special: Collection[int] = (),
    ) -> None:
        """`shown_special` are ids that are text even where special tokens are skipped."""
        self._detokenizer = Detokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, shown=shown_special
        )
        self._search = StopSearch(stop)
        self._can_stop = bool(stop)
        self._include_stop = include_stop
        self._unsearched_tokens = min_tokens
        self._held = ""
        self._stopped = False

    def push(self, token_ids: Sequence[int], final: bool, *, ends_with_stop_token: bool = False) -> TextPiece:
        """Text that these tokens bring; `final` releases what was held back. After a stop string: nothing.

        `ends_with_stop_token` says that the last id is the EOS or stop token that ended the answer; its text
        is left out unless the stop is to be included.
        """
        shown = token_ids[:-1] if ends_with_stop_token and not self._include_stop else token_ids
        text = ""
        for used, token_id in enumerate(shown, start=1):
            if self._stopped:
                break
            piece = self._admit(self._detokenizer.push(token_id))
            text += piece.text
            if piece.stop is not None:
                return TextPiece(text, piece.stop, used)
        if self._stopped:
            return TextPiece("", None, 0)
        if not final:
            return TextPiece(text, None, len(token_ids))
        return self._finish(text, len(token_ids))

    def _finish(self, text: str, tokens_used: int) -> TextPiece:
        self._unsearched_tokens = 0
        last = self._admit(self._detokenizer.flush())
        released, self._held = self._held, ""
        return TextPiece(text + last.text + released, last.stop, tokens_used)

    def _admit(self, new: str) -> TextPiece:
        """What of the held text and `new` may go out."""
        if not self._can_stop:
            return TextPiece(new, None, 1)
        if self._unsearched_tokens > 0:
            self._unsearched_tokens -= 1
            self._search.pass_over(new)
            match = None
        else:
            match = self._search.feed(new)
        known = self._held + new
        if match is not None:
            self._held, self._stopped = "", True
            end = len(known) - len(new) + match.end
            return TextPiece(known[: end if self._include_stop else end - len(match.stop)], match.stop, 1)
        cut = len(known) - self._search.held
        self._held = known[cut:]
        return TextPiece(known[:cut], None, 1)
