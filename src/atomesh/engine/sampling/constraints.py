"""What changes a row's logits before a token is chosen: bans, biases and penalties, in vLLM's order."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atomesh.engine.sampling.reasoning import FREE, Steering, steer
from atomesh.protocol.sampling import SamplingSpec

_LARGEST = torch.finfo(torch.float32).max
_SMALLEST = torch.finfo(torch.float32).tiny
_LARGEST_DOUBLE = torch.finfo(torch.float64).max
_USUAL_PENALTIES = (0.01, 100.0)  # float32 is wide enough for what they make of a logit


@dataclass(frozen=True, slots=True)
class History:
    """The token ids that a row's logits follow."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]


def constrains(spec: SamplingSpec, output_token_ids: Sequence[int]) -> bool:
    """Whether `constrain` would do anything."""
    return (
        len(output_token_ids) < spec.min_tokens
        or spec.repetition_penalty != 1.0
        or spec.presence_penalty != 0.0
        or spec.frequency_penalty != 0.0
        or bool(spec.logit_bias or spec.allowed_token_ids or spec.bad_words)
        or steer(spec.reasoning, output_token_ids) is not FREE
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
    if spec.reasoning is not None:
        _obey(logits, steer(spec.reasoning, history.output_token_ids), spec)


def _obey(logits: Tensor, steering: Steering, spec: SamplingSpec) -> None:
    if steering.forced is not None:
        logits.fill_(-torch.inf)
        logits[steering.forced] = 0.0
    elif steering.must_go_on:
        _ban(logits, (*spec.eos_token_ids, *spec.stop_token_ids))


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
    seen = logits[ids].double()
    penalised = torch.where(seen > 0, seen / penalty, seen * penalty)
    is_usual = _USUAL_PENALTIES[0] <= penalty <= _USUAL_PENALTIES[1]
    largest = _LARGEST if is_usual else _LARGEST_DOUBLE
    penalised = torch.where(seen.isinf(), seen, penalised.clamp(-largest, largest))
    if is_usual:
        logits[ids] = penalised.float()
    else:
        _set_beyond_float32(logits, ids, penalised)


def _set_beyond_float32(logits: Tensor, ids: Tensor, values: Tensor) -> None:
    """`logits[ids] = values`, float64, with the whole row moved to a peak of 0, which changes no choice.

    So the order of the likeliest outlasts float32, however large or small they are.
    """
    wide = logits.double()
    wide[ids] = values
    moved = (wide - wide.amax()).clamp(min=-_LARGEST)
    moved = torch.where(moved < 0.0, moved.clamp(max=-_SMALLEST), moved)
    logits.copy_(torch.where(wide.isinf(), wide, moved))


def _penalise_output(logits: Tensor, spec: SamplingSpec, output: Sequence[int]) -> None:
    """OpenAI's penalties: frequency for each time a token was generated, presence once."""
    counts = Counter(output)
    penalties = logits.new_tensor(list(counts.values())) * spec.frequency_penalty + spec.presence_penalty
    logits[_ids(counts, logits)] -= penalties


def _ids(token_ids: Iterable[int], like: Tensor) -> Tensor:
    return torch.tensor(list(token_ids), dtype=torch.long, device=like.device)
