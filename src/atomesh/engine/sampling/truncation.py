"""Min-p, top-k and top-p, in vLLM's order: exact, but without sorting the vocabulary."""

import torch
from torch import Tensor

from atomesh.engine.sampling.vocab_blocks import BLOCK, into_blocks
from atomesh.protocol.sampling import SamplingSpec

LIKELY_BLOCKS = 32  # most nuclei lie above the peak of the 32nd block
ROUNDING = 1e-5  # more than float32 sums of probabilities err
SMALLEST = torch.finfo(torch.float32).tiny


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
    if _is_bounded_before_nucleus(spec):
        return _at_least(blocks, peaks, _lower_bound(probabilities, peaks, spec))
    if len(peaks) > LIKELY_BLOCKS:
        likely = _at_least(blocks, peaks, float(peaks.topk(LIKELY_BLOCKS).values[-1]))
        if float(probabilities[likely].sum()) > spec.top_p + ROUNDING:
            return likely
    # Tokens below (1 - p) / V together have less than 1 - p; the others hold the nucleus.
    return _at_least(blocks, peaks, (1.0 - ROUNDING) * (1.0 - spec.top_p) / len(probabilities))


def _at_least(blocks: Tensor, peaks: Tensor, threshold: float) -> Tensor:
    """Ids, ascending, of what reaches `threshold` and is not zero."""
    bound = max(threshold, SMALLEST)
    hot = (peaks >= bound).nonzero().squeeze(1)
    block, offset = (blocks[hot] >= bound).nonzero().unbind(1)
    return hot[block] * BLOCK + offset


def _lower_bound(probabilities: Tensor, peaks: Tensor, spec: SamplingSpec) -> float:
    """A probability that all that min_p and top_k keep reaches."""
    threshold = (1.0 - ROUNDING) * spec.min_p * float(peaks.max())
    if spec.top_k > 0:
        pool = peaks if spec.top_k <= len(peaks) else probabilities
        # At least k tokens reach the k-th highest block maximum.
        kth = pool.topk(min(spec.top_k, len(pool))).values[-1]
        threshold = max(threshold, float(kth))
    return threshold


def _is_bounded_before_nucleus(spec: SamplingSpec) -> bool:
    return spec.min_p > 0.0 or spec.top_k > 0
