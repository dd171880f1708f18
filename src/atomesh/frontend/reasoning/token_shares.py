"""How many of an answer's tokens were reasoning, where only text and numbers of tokens are seen."""


class TokenShares:
    """Text is given out later than its tokens come: what is held back may turn out to be a tag.

    Exact where each piece is of one token, as the engine sends them: a token counts when any character of it
    is reasoning. Of a piece of several, some reasoning and some not, characters decide.
    """

    def __init__(self) -> None:
        self.reasoning = 0
        self._unsettled = 0
        self._inside = 0
        self._others = 0

    def came(self, num_tokens: int) -> None:
        self._unsettled += num_tokens

    def inside(self, characters: int) -> None:
        """So many characters of what has come are reasoning."""
        self._inside += characters

    def outside(self, characters: int) -> None:
        """So many are a tag, or for the reader."""
        self._others += characters

    def settle(self, held: int) -> None:
        """All that has come is said but `held` characters, whose tokens stay open."""
        said = self._inside + self._others
        if said == 0:
            return
        counted = _share(self._unsettled, self._inside, said + held)
        self.reasoning += counted
        others = _share(self._unsettled - counted, self._others, self._others + held)
        self._unsettled -= counted + others
        self._inside = self._others = 0


def _share(tokens: int, part: int, whole: int) -> int:
    """Of the tokens of `whole` characters, those of `part`: rounded, but none only where there is no part."""
    if part == 0 or tokens == 0:
        return 0
    if part == whole:
        return tokens
    return min(max(1, (2 * tokens * part + whole) // (2 * whole)), max(1, tokens - 1))
