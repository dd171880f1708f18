"""How many of an answer's tokens were reasoning, where only text and numbers of tokens are seen."""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class _Piece:
    """Some text that has come, its tokens, and what of it was said to be what.

    `lead` are tokens before it that had no text yet: its first character is theirs.
    """

    size: int
    tokens: int
    lead: int
    begins_inside: bool = False
    inside: int = 0
    outside: int = 0
    has_whole_mark: bool = False

    @property
    def left(self) -> int:
        return self.size - self.inside - self.outside

    def reasoning(self) -> int:
        if self.outside == 0:
            return self.lead + self.tokens
        if self.inside == 0:
            return 0
        return (self.lead if self.begins_inside else 0) + self._share()

    def _share(self) -> int:
        if self.tokens <= 1:
            return 0 if self.has_whole_mark else self.tokens
        rounded = (2 * self.tokens * self.inside + self.size) // (2 * self.size)
        return min(max(rounded, 1), self.tokens - 1)


class TokenShares:
    """Text that has come is said to be reasoning or not, in its order, and perhaps later than it came.

    Exact where each piece is of one token, as our engine sends them: a token counts when it has reasoning in
    it and no whole mark. The text of a token that only begins a character comes with the next one's. Of a
    piece of several tokens, some reasoning and some not, characters decide.
    """

    def __init__(self) -> None:
        self.reasoning = 0
        self._pieces: deque[_Piece] = deque()
        self._without_text = 0

    def came(self, size: int, tokens: int) -> None:
        """A piece of `size` characters."""
        if size == 0:
            self._without_text += tokens
            return
        self._pieces.append(_Piece(size, tokens, self._without_text))
        self._without_text = 0

    def inside(self, size: int) -> None:
        """The next `size` characters are reasoning."""
        while size:
            piece = self._pieces[0]
            taken = min(size, piece.left)
            piece.begins_inside |= piece.outside == 0
            piece.inside += taken
            size -= taken
            self._drop_said(piece)

    def outside(self, size: int, *, is_mark: bool = False) -> None:
        """The next `size` characters are for the reader, or a mark."""
        while size:
            piece = self._pieces[0]
            taken = min(size, piece.left)
            piece.outside += taken
            piece.has_whole_mark |= is_mark and taken == size
            size -= taken
            self._drop_said(piece)

    def _drop_said(self, piece: _Piece) -> None:
        if piece.left == 0:
            self.reasoning += piece.reasoning()
            self._pieces.popleft()
