"""The default model against transformers: greedy ids in float32, agreement in bfloat16."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from atomesh.engine.engine import Engine
from atomesh.engine.execution import local_executor
from atomesh.engine.options import EngineOptions
from atomesh.frontend.text.tokenizer import Tokenizer, load_tokenizer
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.reference_model import all_logits, load_reference

NEW_TOKENS = 8
KV_MEMORY = 400 * 2**20
LICENSE = Path(__file__).parents[2] / "LICENSE"
SLICE_LENGTHS = [1, 2, 3, 7, 15, 16, 17, 20, 24, 31, 32, 33, 40, 47, 48, 49, 63, 64, 65, 96, 97, 130]
QUESTIONS = [
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "The three primary colours are",
    "Dear Sir or Madam,\n\nI am writing to",
    "To make bread you need flour,",
    "In 1969, the first human",
    "Q: What is 12 times 12?\nA:",
    "The opposite of hot is",
    "import numpy as np\n\nx = np.",
    "My favourite season is autumn because",
    "The quick brown fox",
    "A list of fruits:\n1. Apple\n2.",
    "Photosynthesis is the process by which",
    "SELECT name FROM users WHERE",
    "The Great Wall of China was built",
    "He opened the door and saw",
    "Le chat est sur la",
    "If it rains tomorrow, we will",
    "The speed of light is approximately",
    "Her grandmother used to say that",
    "<html>\n<head>\n",
    "The main difference between a frog and a toad is",
    "Shakespeare wrote many plays, among them",
    "The patient complained of",
    "Step 1: Preheat the oven to",
    "According to the theory of evolution,",
    "{'name': 'Alice', 'age':",
    "Earth is the third planet from",
]


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(default_model))


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """52 of them, 1 to 130 tokens; slices of one text start at the same place in sixes."""
    text = tokenizer.encode(LICENSE.read_text())
    slices = [text[index // 6 * 100 :][:length] for index, length in enumerate(SLICE_LENGTHS)]
    return slices + [tokenizer.encode(question) for question in QUESTIONS]


class Reference:
    """transformers' model in float32, and its logits for texts and their beginnings, computed once."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """[tokens, vocabulary]."""
        known = next((text for text in self._known if text[: len(ids)] == tuple(ids)), None)
        if known is None:
            known = tuple(ids)
            self._known[known] = all_logits(self.model, ids)
        return self._known[known][: len(ids)]


@pytest.fixture(scope="module")
def reference(default_model: Path) -> Reference:
    return Reference(load_reference(default_model))


OPTIONS = {
    "cached, chunked": EngineOptions(dtype="float32", kv_memory=KV_MEMORY, max_num_batched_tokens=100),
    "uncached, whole": EngineOptions(
        dtype="float32",
        kv_memory=KV_MEMORY,
        block_size=16,
        enable_prefix_cache=False,
        enable_chunked_prefill=False,
    ),
}


@pytest.mark.parametrize("mode", OPTIONS)
def test_greedy(  # noqa: PLR0917 (fixtures)
    mode: str,
    default_model: Path,
    prompts: list[list[int]],
    reference: Reference,
    greedy_run: Any,
    check_greedy: Any,
    tokenizer: Tokenizer,
) -> None:
    answers = greedy_run(default_model, OPTIONS[mode])(prompts, NEW_TOKENS)
    assert len(answers) == 52
    for answer in answers:
        logits = reference.logits([*answer.prompt, *answer.token_ids[:-1]])
        check_greedy(answer, logits[len(answer.prompt) - 1 :])
    france = answers[len(SLICE_LENGTHS)]
    assert tokenizer.decode(france.token_ids).startswith(" Paris")
    assert any(answer.cached_tokens for answer in answers) == OPTIONS[mode].enable_prefix_cache


def test_bfloat16(
    default_model: Path,
    tokenizer: Tokenizer,
    reference: Reference,
    greedy_run: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """We agree with float32 as often as transformers in bfloat16 does, to half a point; no text twice."""
    license_text = tokenizer.encode(LICENSE.read_text())
    texts = [license_text[start:][:150] for start in range(0, 1200, 150)]
    texts += [tokenizer.encode(question) for question in QUESTIONS]
    engine = greedy_run(default_model, EngineOptions(dtype="bfloat16", kv_memory=KV_MEMORY)).engine
    ours = our_logits(engine, texts, monkeypatch)
    exact = torch.cat([reference.logits(text)[:-1] for text in texts])
    rounded = reference.model.to(torch.bfloat16)
    theirs = torch.cat([all_logits(rounded, text)[:-1] for text in texts])

    best = exact.argmax(-1)
    our_agreement = (ours.argmax(-1) == best).float().mean()
    their_agreement = (theirs.argmax(-1) == best).float().mean()
    assert our_agreement >= their_agreement - 0.005
    error = (ours - exact).pow(2).mean().sqrt()
    top_two = exact.topk(2).values
    gap = (top_two[:, 0] - top_two[:, 1])[ours.argmax(-1) != best]
    assert (gap <= 4 * error).all()


def our_logits(engine: Engine, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """All but the last token's of each text, as the engine hands them to its prompt logprobs."""
    recorded: list[torch.Tensor] = []
    measure = local_executor.prompt_logprobs

    def record(logits: torch.Tensor, targets: Sequence[int], top: int) -> Any:
        recorded.append(logits.float())
        return measure(logits, targets, top)

    monkeypatch.setattr(local_executor, "prompt_logprobs", record)
    sampling = SamplingSpec(seed=0, max_tokens=0, prompt_logprobs=0)
    for text in texts:
        engine.add(GenerationRequest(request_id="text", prompt_token_ids=text, sampling=sampling))
        while engine.has_work():
            engine.step()
    return torch.cat(recorded)
