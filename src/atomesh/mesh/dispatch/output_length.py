"""How long the answers of a model tend to be, for placement to expect of the next."""

from atomesh.mesh.placement.inputs import EXPECTED_OUTPUT_TOKENS

NEW_SHARE = 0.02  # of each answer in the mean


class OutputLength:
    """A mean in which old answers fade."""

    def __init__(self) -> None:
        self._mean = float(EXPECTED_OUTPUT_TOKENS)

    def ended(self, tokens: float) -> None:
        """A choice of so many tokens."""
        self._mean += NEW_SHARE * (tokens - self._mean)

    def expected(self, max_tokens: int) -> int:
        """Of a choice that may have `max_tokens`; at least one."""
        return max(1, min(max_tokens, round(self._mean)))
