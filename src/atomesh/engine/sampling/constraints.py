"""What changes a row's logits before a token is chosen: bans, biases and penalties, in vLLM's order."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atomesh.protocol.sampling import SamplingSpec


@dataclass(frozen=True, slots=True)
class History:
    """The token ids that a row's logits follow."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]


def constrains(spec: SamplingSpec, num_output_tokens: int) -> bool:
    """Whether `constrain` would do anything."""
    return (
        num_output_tokens < spec.min_tokens
        or spec.repetition_penalty != 1.0
        or spec.presence_penalty != 0.0
        or spec.frequency_penalty != 0.0
        or bool(spec.logit_bias or spec.allowed_token_ids or spec.bad_words)
    )


def constrain(logits: Tensor, spec: SamplingSpec, history: History) -> None:
    """Change `logits` [vocab], float32, in place. A banned token gets -inf."""
    if spec.allowed_token_ids:
        _keep_only(logits, spec.allowed_token_ids)
    _ban(logits, _completed_bad_words(spec.bad_words, history.output_token_ids))
    if len(history.output_token_ids) < spec.min_tokens:
        _ban(logits, (*spec.eos_token_ids, *spec.stop_token_ids))
    if spec.logit_bias:
        logits[_ids(spec.logit_bias, logits)] += logits.new_tensor(list(spec.logit_bias.values()))
    if spec.repetition_penalty != 1.0:
        _penalise_repetition(logits, spec.repetition_penalty, history)
    if (spec.presence_penalty != 0.0 or spec.frequency_penalty != 0.0) and history.output_token_ids:
        _penalise_output(logits, spec, history.output_token_ids)


def _keep_only(logits: Tensor, token_ids: Sequence[int]) -> None:
    ids = _ids(token_ids, logits)
    kept = logits[ids]
    logits.fill_(-torch.inf)
    logits[ids] = kept


def _ban(logits: Tensor, token_ids: Sequence[int]) -> None:
    if token_ids:
        logits[_ids(token_ids, logits)] = -torch.inf


def _completed_bad_words(bad_words: Sequence[Sequence[int]], output: Sequence[int]) -> list[int]:
    """The tokens that would complete a bad word of which the output already ends with the rest."""
    return [
        word[-1]
        for word in bad_words
        if len(word) <= len(output) + 1 and list(output[len(output) - len(word) + 1 :]) == list(word[:-1])
    ]


def _penalise_repetition(logits: Tensor, penalty: float, history: History) -> None:
    """Divide positive and multiply negative logits of all tokens seen (Keskar et al., arXiv:1909.05858)."""
    ids = _ids((*history.prompt_token_ids, *history.output_token_ids), logits)
    seen = logits[ids]
    logits[ids] = torch.where(seen > 0, seen / penalty, seen * penalty)


def _penalise_output(logits: Tensor, spec: SamplingSpec, output: Sequence[int]) -> None:
    """OpenAI's penalties: frequency for each time a token was generated, presence once."""
    counts = Counter(output)
    penalties = logits.new_tensor(list(counts.values())) * spec.frequency_penalty + spec.presence_penalty
    logits[_ids(counts, logits)] -= penalties


def _ids(token_ids: Iterable[int], like: Tensor) -> Tensor:
    return torch.tensor(list(token_ids), dtype=torch.long, device=like.device)
