"""A cost that is linear in a few features, learned from samples as they come, and from a prior.

What is minimised is the relative error of the samples, the old ones fading, and, FIRMNESS as heavily as a
sample's, the relative distance of each coefficient from the prior. So a coefficient that the samples say
nothing of stays at the prior; the prior as a whole is scaled to the samples.
"""

from collections.abc import Sequence
from math import exp, log

from atomesh.mesh.placement.non_negative import solve_non_negative

FIRMNESS = 0.02
KEPT = 0.99  # what remains of a sample's weight with each further one of its kind
SLOWEST_SCALE = 0.02  # the share of each sample in the prior's scale
OUTLIER = 4.0  # a sample so many times its prediction counts as if it were no more than that


class LinearFit:
    """`kinds` of samples fade apart: many of one kind do not make those of the other forgotten."""

    def __init__(self, prior: Sequence[float], kinds: int = 1) -> None:
        self.num_samples = 0
        self._prior = tuple(prior)
        self._log_scale = 0.0
        self._current = self._prior
        size = len(self._prior)
        self._grams = [[[0.0] * (j + 1) for j in range(size)] for _ in range(kinds)]  # lower triangles
        self._moments = [[0.0] * size for _ in range(kinds)]

    @property
    def coefficients(self) -> tuple[float, ...]:
        """As of the last `solve`."""
        return self._current

    def add(self, features: Sequence[float], value: float, kind: int = 0) -> None:
        """A sample; `features` and `value` are positive, some of the features perhaps 0."""
        prior, current = self._prior, self._current
        expected = predicted = 0.0
        for at, feature in enumerate(features):
            expected += prior[at] * feature
            predicted += current[at] * feature
        self._scale(value / expected)
        if self.num_samples == 1:
            predicted = value
        predicted = max(predicted, value / OUTLIER)
        row = [prior[at] * feature / predicted for at, feature in enumerate(features)]
        target = min(value / predicted, OUTLIER)
        moments, gram = self._moments[kind], self._grams[kind]
        for at, entry in enumerate(row):
            moments[at] = KEPT * moments[at] + target * entry
            line = gram[at]
            for other in range(at + 1):
                line[other] = KEPT * line[other] + entry * row[other]

    def solve(self) -> tuple[float, ...]:
        """The coefficients for all samples so far."""
        scale = exp(self._log_scale)
        size = range(len(self._prior))
        gram = [[sum(one[max(j, k)][min(j, k)] for one in self._grams) for k in size] for j in size]
        moment = [sum(one[j] for one in self._moments) + FIRMNESS / scale for j in size]
        for j in size:
            gram[j][j] += FIRMNESS / (scale * scale)
        ratios = solve_non_negative(gram, moment)
        self._current = tuple(p * ratio for p, ratio in zip(self._prior, ratios, strict=True))
        return self._current

    def _scale(self, ratio: float) -> None:
        self.num_samples += 1
        share = max(1.0 / self.num_samples, SLOWEST_SCALE)
        self._log_scale += share * (log(ratio) - self._log_scale)
