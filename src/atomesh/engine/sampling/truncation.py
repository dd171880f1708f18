"""Min-p, top-k and top-p, in vLLM's order: exact, but without sorting the vocabulary."""

import torch
from torch import Tensor

from atomesh.engine.sampling.vocab_blocks import BLOCK, into_blocks
from atomesh.protocol.sampling import SamplingSpec


def truncates(spec: SamplingSpec) -> bool:
    return spec.top_k > 0 or spec.top_p < 1.0 or spec.min_p > 0.0


def truncate(probabilities: Tensor, spec: SamplingSpec) -> None:
    """Set to zero, in place, every entry of `probabilities` [vocab], which sum to 1, that `spec` rules out.

    One rule after the other keeps: min_p, tokens at least min_p times as likely as the likeliest; top_k,
    the k likeliest; top_p, the fewest likeliest whose share of what is left reaches top_p. Among equals the
    lower id counts as likelier. The likeliest token is always kept.
    """
    candidates = _candidates(probabilities, spec)
    values, order = probabilities[candidates].sort(descending=True, stable=True)
    if spec.min_p > 0.0:
        values = values[values >= spec.min_p * values[0]]
    if spec.top_k > 0:
        values = values[: spec.top_k]
    if spec.top_p < 1.0:
        values = values[: _nucleus_size(values, spec)]
    kept = candidates[order[: len(values)]]
    probabilities.zero_()
    probabilities[kept] = values


def _nucleus_size(values: Tensor, spec: SamplingSpec) -> int:
    cdf = values.double().cumsum(dim=-1)
    whole = cdf[-1] if _is_bounded_before_nucleus(spec) else 1.0
    return int(torch.searchsorted(cdf, spec.top_p * whole)) + 1


def _candidates(probabilities: Tensor, spec: SamplingSpec) -> Tensor:
    """Ids, ascending: at least all that min_p and top_k keep or, without them, all that top_p keeps."""
    blocks = into_blocks(probabilities.unsqueeze(0), padding=0.0)[0]
    peaks = blocks.amax(dim=-1)
    threshold = _threshold(probabilities, peaks, spec)
    hot = (peaks >= threshold).nonzero().squeeze(1)
    block, offset = (blocks[hot] >= threshold).nonzero().unbind(1)
    return hot[block] * BLOCK + offset


def _threshold(probabilities: Tensor, peaks: Tensor, spec: SamplingSpec) -> float:
    """A probability, above zero, below which nothing is kept."""
    if not _is_bounded_before_nucleus(spec):
        # Tokens below (1 - p) / V together have less than 1 - p; the others hold the nucleus.
        # Half of that leaves room for rounding.
        return max(0.5 * (1.0 - spec.top_p) / len(probabilities), _SMALLEST)
    threshold = 0.999 * spec.min_p * float(peaks.max())  # the exact test is `truncate`'s
    if spec.top_k > 0:
        pool = peaks if spec.top_k <= len(peaks) else probabilities
        # At least k tokens reach the k-th highest block maximum.
        kth = pool.topk(min(spec.top_k, len(pool))).values[-1]
        threshold = max(threshold, float(kth))
    return max(threshold, _SMALLEST)


def _is_bounded_before_nucleus(spec: SamplingSpec) -> bool:
    return spec.min_p > 0.0 or spec.top_k > 0


_SMALLEST = torch.finfo(torch.float32).tiny
