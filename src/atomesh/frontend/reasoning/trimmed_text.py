"""Text without the newlines at its ends, piece by piece."""


class TrimmedText:
    """A template writes newlines between a tag and the text: they belong to neither."""

    def __init__(self) -> None:
        self._newlines = 0
        self._has_begun = False

    def feed(self, text: str) -> str:
        """What of the text may go out; newlines wait for what follows them."""
        if not self._has_begun:
            text = text.lstrip("\n")
        kept = text.rstrip("\n")
        newlines, self._newlines = self._newlines, len(text) - len(kept)
        if not kept:
            self._newlines += newlines
            return ""
        self._has_begun = True
        return "\n" * newlines + kept
