"""How much of a prompt each worker holds: facts for placement to price."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from atomesh.protocol.block_hash import BlockHash


@dataclass(frozen=True, slots=True)
class MatchedBlocks:
    """The longest run of a prompt's blocks, from the first on, that a worker holds.

    `device` counts those that its next step can use where they lie, the last `promised` of them once it has
    computed what was sent there; `host` those after them that it has to bring back from a slower tier first.
    """

    device: int = 0
    host: int = 0
    promised: int = field(default=0, compare=False)

    @property
    def total(self) -> int:
        return self.device + self.host


Matches = Mapping[str, MatchedBlocks]  # by worker incarnation; one that holds nothing is not in it
NO_MATCHES: Matches = {}


class PrefixIndex(Protocol):
    """Where prefixes lie. `now` is in seconds on one monotonic clock; hashes are those of full blocks."""

    def match(self, hashes: Sequence[BlockHash], now: float) -> Matches:
        """Who holds how much of the prompt whose blocks these are, in order. Changes no answer."""
        ...

    def predict(self, incarnation: str, hashes: Sequence[BlockHash], now: float) -> None:
        """A prompt with these blocks has been sent to a worker: it will hold them soon.

        What the worker does not confirm is forgotten again after a while.
        """
        ...

    def drop(self, incarnation: str) -> None:
        """The worker is gone, and its KV with it."""
        ...
