"""Which tokens may follow, in the sampler's terms."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """`mask` [vocab] of bools, in the processor's memory. `is_over`: only the end may follow."""

    mask: Tensor
    is_over: bool


def read_allowed(
    bits: npt.NDArray[np.int32], vocab_size: int, eos_ids: "Sequence[int]", *, ends: bool
) -> AllowedTokens:
    """Of one row of llguidance's bits; what is beyond them, as in a padded vocabulary, may not follow.

    Without `ends` the answer goes on for as long as the grammar lets it.
    """
    allowed = np.zeros(vocab_size, dtype=np.bool_)
    known = np.unpackbits(bits.view(np.uint8), bitorder="little", count=min(vocab_size, 32 * len(bits)))
    allowed[: len(known)] = known
    ending = [token_id for token_id in eos_ids if allowed[token_id]]
    allowed[ending] = False
    is_over = not allowed.any()
    if ends or is_over:
        allowed[ending] = True
    return AllowedTokens(torch.from_numpy(allowed), is_over)
