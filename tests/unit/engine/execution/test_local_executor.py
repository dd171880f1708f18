"""The executor over a tiny model: what it samples, what it foresees, and what it says of NaN."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from atomesh.engine.attention.shape import AttentionShape
from atomesh.engine.attention.torch_attention import TorchAttention
from atomesh.engine.core.batch import BlockCopy, ScheduledBatch, ScheduledSequence
from atomesh.engine.execution import local_executor
from atomesh.engine.execution.kv_pool import KVPool
from atomesh.engine.execution.local_executor import FORBIDDEN, NOT_FINITE, LocalExecutor
from atomesh.engine.execution.model_runner import ModelRunner
from atomesh.engine.layers.weight_slot import TensorFactory
from atomesh.engine.models.registry import build_model
from atomesh.engine.weights.loader import load_weights
from atomesh.engine.weights.source import WeightSource
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.tiny_model import write_tiny_model

CPU = torch.device("cpu")
PROMPT = [(7 * i) % 300 for i in range(40)]
GREEDY = SamplingSpec(seed=1, max_tokens=5, temperature=0.0)


@dataclass
class Bench:
    executor: LocalExecutor
    runner: ModelRunner
    pool: KVPool
    vocab_size: int

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Of every position, computed in one piece in blocks of their own."""
        with torch.inference_mode():
            run = self.runner.run(ScheduledBatch((sequence(99, ids, blocks=[6, 7]),)))
            return self.runner.logits(run.hidden)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path / "model"))
    model = build_model(checkpoint.config, TensorFactory(torch.float32, CPU))
    load_weights(model, WeightSource(checkpoint))
    pool = KVPool(checkpoint.config, 8, 32, torch.float32, CPU)
    runner = ModelRunner(model, TorchAttention(AttentionShape.of(checkpoint.config), pool.paged), CPU)
    vocab_size = checkpoint.config.vocab_size
    return Bench(LocalExecutor(runner, pool, vocab_size), runner, pool, vocab_size)


def sequence(
    sequence_id: int,
    token_ids: Sequence[int],
    *,
    start: int = 0,
    blocks: Sequence[int] = (0, 1),
    choices: tuple[int, ...] = (),
    sampling: SamplingSpec = GREEDY,
    output: Sequence[int] = (),
) -> ScheduledSequence:
    return ScheduledSequence(sequence_id, sampling, token_ids, start, blocks, choices, PROMPT, output)


def test_one_token_for_each_choice_and_none_without(bench: Bench) -> None:
    warm = SamplingSpec(seed=3, max_tokens=5, temperature=2.0)
    batch = ScheduledBatch(
        (
            sequence(1, PROMPT[:7], blocks=[0]),
            sequence(2, PROMPT, blocks=[1, 2], choices=(0,)),
            sequence(3, PROMPT, blocks=[3, 4], choices=(0, 1, 2), sampling=warm),
        )
    )
    outcomes = bench.executor.execute(batch).outcomes
    assert outcomes[1].sampled == ()
    assert [token.token_id for token in outcomes[2].sampled] == [int(bench.logits(PROMPT)[-1].argmax())]
    assert len(outcomes[3].sampled) == 3
    assert len({token.token_id for token in outcomes[3].sampled}) > 1


def test_a_cut_prompt_goes_on_where_it_stopped(bench: Bench) -> None:
    for start, end in ((0, 5), (5, 33), (33, 39)):
        bench.executor.execute(ScheduledBatch((sequence(1, PROMPT[start:end], start=start),)))
    outcome = bench.executor.execute(
        ScheduledBatch((sequence(1, PROMPT[39:], start=39, choices=(0,)),))
    ).outcomes[1]
    assert outcome.sampled[0].token_id == int(bench.logits(PROMPT)[-1].argmax())


@pytest.mark.parametrize("rows_at_once", [1, 3, 1000])
def test_prompt_logprobs_by_chunks(bench: Bench, monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    monkeypatch.setattr(local_executor, "LOGIT_BYTES", rows_at_once * 4 * bench.vocab_size)
    executor = LocalExecutor(bench.runner, bench.pool, bench.vocab_size)
    sampling = SamplingSpec(seed=1, max_tokens=5, prompt_logprobs=2)
    found = []
    for start, end in ((0, 5), (5, 40)):
        batch = ScheduledBatch(
            (
                sequence(1, PROMPT[start:end], start=start, sampling=sampling),
                sequence(2, PROMPT[:3], blocks=[3]),
            )
        )
        outcomes = executor.execute(batch).outcomes
        assert outcomes[2].prompt_logprobs == ()
        found += outcomes[1].prompt_logprobs
    assert [entry.token_id for entry in found] == PROMPT[1:]
    expected = bench.logits(PROMPT).log_softmax(-1)
    for entry, row in zip(found, expected, strict=False):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        assert entry.rank == int((row > row[entry.token_id]).sum()) + 1
        assert len(entry.top) == 2
        assert entry.top[0][0] == int(row.argmax())


def test_many_sequences_than_fit_at_once_are_sampled_in_chunks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = tuple(
        sequence(i, PROMPT[: i + 1], blocks=[i], choices=(0,), sampling=GREEDY) for i in range(5)
    )
    whole = bench.executor.execute(ScheduledBatch(sequences))
    monkeypatch.setattr(local_executor, "LOGIT_BYTES", 2 * 4 * bench.vocab_size)
    assert (
        LocalExecutor(bench.runner, bench.pool, bench.vocab_size).execute(ScheduledBatch(sequences)) == whole
    )


def test_copies_come_before_everything_else(bench: Bench) -> None:
    bench.executor.execute(ScheduledBatch((sequence(1, PROMPT, blocks=[0, 1]),)))
    token = int(bench.logits(PROMPT)[-1].argmax())
    branch = sequence(2, [token], start=40, blocks=[0, 5], choices=(0,), output=[token])
    outcome = bench.executor.execute(ScheduledBatch((branch,), copies=(BlockCopy(1, 5),))).outcomes[2]
    assert outcome.sampled[0].token_id == int(bench.logits([*PROMPT, token])[-1].argmax())


def test_numbers_that_are_none_end_their_own_sequence_alone(bench: Bench) -> None:
    bench.pool.storage[3] = float("nan")
    sampling = SamplingSpec(seed=1, max_tokens=5, temperature=0.0, prompt_logprobs=0)
    sick = sequence(1, [5], start=3, blocks=[3], choices=(0,))
    sick_prompt = sequence(2, PROMPT[3:9], start=3, blocks=[3], sampling=sampling)
    sound = sequence(3, PROMPT[:9], blocks=[4], choices=(0,))
    outcomes = bench.executor.execute(ScheduledBatch((sick, sick_prompt, sound))).outcomes
    for sequence_id in (1, 2):
        assert (outcomes[sequence_id].error, outcomes[sequence_id].is_own_fault) == (NOT_FINITE, False)
    assert outcomes[3].error is None
    assert outcomes[3].sampled[0].token_id == int(bench.logits(PROMPT[:9])[-1].argmax())


def test_constraints_that_forbid_every_token_are_the_requests_own_fault(bench: Bench) -> None:
    impossible = SamplingSpec(seed=1, max_tokens=5, allowed_token_ids=(2,), bad_words=((2,),))
    batch = ScheduledBatch((sequence(1, PROMPT[:9], choices=(0, 1), sampling=impossible),))
    outcome = bench.executor.execute(batch).outcomes[1]
    assert (outcome.sampled, outcome.error, outcome.is_own_fault) == ((), FORBIDDEN, True)


def test_closing_twice_is_harmless(bench: Bench) -> None:
    bench.executor.close()
    bench.executor.close()
