"""From logits to tokens, each row as its own request asks and untouched by the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from atomesh.engine.core.batch import SampledToken
from atomesh.engine.sampling.constraints import History, constrain, constrains
from atomesh.engine.sampling.logprobs import token_logprobs
from atomesh.engine.sampling.noise import exponentials
from atomesh.engine.sampling.truncation import truncate, truncates
from atomesh.engine.sampling.vocab_blocks import argmax, noise_per_row, race
from atomesh.protocol.generation import TokenLogprobs
from atomesh.protocol.sampling import GREEDY_BELOW, SamplingSpec

VALUES_AT_ONCE = 2**24  # bounds each temporary to 64 MiB


class NoToken(Enum):
    """Why none can be chosen."""

    NOT_FINITE = "not finite"  # the row's logits
    FORBIDDEN = "forbidden"  # all of them, by the request's own constraints


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One token to choose: from which row of the logits, how, for which choice, and after which tokens.

    With `allowed` [vocab], bools, only those that its grammar allows.
    """

    logits_row: int
    spec: SamplingSpec
    choice: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    allowed: Tensor | None = None

    @property
    def is_greedy(self) -> bool:
        return self.spec.temperature < GREEDY_BELOW

    @property
    def is_constrained(self) -> bool:
        return self.allowed is not None or constrains(self.spec, self.output_token_ids)

    def waits(self, count: int) -> npt.NDArray[np.float64]:
        return exponentials(self.spec.seed, self.choice, len(self.output_token_ids), count)


class Sampler:
    """Stateless; all of it runs on the device of the logits."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[SampledToken | NoToken]:
        """One token for each of `rows` from `logits` [n, vocab], of any float dtype, which stay as they are.

        A padded vocabulary's surplus columns are ignored.
        """
        at_once = max(1, VALUES_AT_ONCE // self._vocab_size)
        chunks = (rows[start : start + at_once] for start in range(0, len(rows), at_once))
        return [token for chunk in chunks for token in self._sample_chunk(logits, chunk)]

    def _sample_chunk(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[SampledToken | NoToken]:
        raw = _take(logits[:, : self._vocab_size], [row.logits_row for row in rows]).float()
        finite = _finite_rows(raw)
        usable = set(finite)
        constrained = _constrain(raw, rows, usable)
        token_ids = _choose(constrained, rows, usable)
        logprobs = _logprobs(raw, rows, token_ids)
        return [
            _absence(index in finite) if token_id is None else SampledToken(token_id, logprobs.get(index))
            for index, token_id in enumerate(token_ids)
        ]


def _absence(is_finite: bool) -> NoToken:
    return NoToken.FORBIDDEN if is_finite else NoToken.NOT_FINITE


def _take(matrix: Tensor, rows: Sequence[int]) -> Tensor:
    """`matrix[rows]`, without a copy when that is the whole matrix."""
    if list(rows) == list(range(len(matrix))):
        return matrix
    return matrix[torch.tensor(rows, dtype=torch.long, device=matrix.device)]


def _finite_rows(raw: Tensor) -> set[int]:
    sums = (
        raw.sum(dim=-1).isfinite().tolist()
    )  # a finite sum has finite terms; only a bad one is looked at closely
    return {index for index, is_finite in enumerate(sums) if is_finite or bool(raw[index].isfinite().all())}


def _constrain(raw: Tensor, rows: Sequence[SampleRow], usable: set[int]) -> Tensor:
    """The logits to choose from; rows whose constraints leave nothing to choose leave `usable`."""
    affected = [index for index in sorted(usable) if rows[index].is_constrained]
    if not affected:
        return raw
    constrained = raw.clone()
    for index in affected:
        row = rows[index]
        constrain(constrained[index], row.spec, History(row.prompt_token_ids, row.output_token_ids))
        if row.allowed is not None:
            constrained[index].masked_fill_(~row.allowed.to(raw.device), -torch.inf)
    peaks = _take(constrained, affected).amax(dim=-1).isfinite().tolist()
    usable.difference_update(index for index, is_finite in zip(affected, peaks, strict=True) if not is_finite)
    return constrained


def _choose(logits: Tensor, rows: Sequence[SampleRow], usable: set[int]) -> list[int | None]:
    token_ids: list[int | None] = [None] * len(rows)
    greedy = [index for index in sorted(usable) if rows[index].is_greedy]
    random = [index for index in sorted(usable) if not rows[index].is_greedy]
    if greedy:
        for index, token_id in zip(greedy, argmax(_take(logits, greedy)).tolist(), strict=True):
            token_ids[index] = token_id
    if random:
        drawn = _draw(_take(logits, random), [rows[index] for index in random])
        for index, token_id in zip(random, drawn, strict=True):
            token_ids[index] = token_id
    return token_ids


def _draw(logits: Tensor, rows: Sequence[SampleRow]) -> list[int]:
    temperatures = logits.new_tensor([row.spec.temperature for row in rows]).unsqueeze(1)
    scaled = (logits - logits.amax(dim=-1, keepdim=True)).div_(temperatures)
    probabilities = scaled.softmax(dim=-1)
    for index, row in enumerate(rows):
        if truncates(row.spec):
            truncate(probabilities[index], row.spec)
    count = noise_per_row(logits.shape[1])
    waits = torch.from_numpy(np.stack([row.waits(count) for row in rows])).to(logits.device)
    return race(probabilities, waits).tolist()


def _logprobs(
    raw: Tensor, rows: Sequence[SampleRow], token_ids: Sequence[int | None]
) -> dict[int, TokenLogprobs]:
    """By row, for the rows that ask for them; those that ask for as many are computed together."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for index, (row, token_id) in enumerate(zip(rows, token_ids, strict=True)):
        if row.spec.logprobs is not None and token_id is not None:
            groups.setdefault(row.spec.logprobs, []).append((index, token_id))
    found: dict[int, TokenLogprobs] = {}
    for top, members in groups.items():
        indices = [index for index, _ in members]
        entries = token_logprobs(_take(raw, indices), [token_id for _, token_id in members], top)
        found.update(zip(indices, entries, strict=True))
    return found
