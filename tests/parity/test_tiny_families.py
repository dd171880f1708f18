"""Greedy ids and logits of every family equal transformers', however prompts were batched, cut and cached.

The models are random, tiny, and written by transformers itself, configuration included.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.gemma3 import modeling_gemma3

from atomesh.engine.options import EngineOptions

VOCABULARY = 256
MAX_POSITION = 256
NEW_TOKENS = 10
NUM_PROMPTS = 52

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_POSITION,
    "tie_word_embeddings": False,
}


def rope(kind: str, **fields: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **fields}}


GEMMA = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 21,
    "query_pre_attn_scalar": 20,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}

ATTENTION_CAP = 2.0

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": 21}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3", GEMMA),
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, biases, tied": (
        "Llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama, one key head": ("Llama", {"num_key_value_heads": 1}),
    "llama, linear": ("Llama", rope("linear", factor=3.0)),
    "llama, llama3": (
        "Llama",
        rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "llama, yarn": ("Llama", rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "llama, yarn, all set": (
        "Llama",
        rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=64,
            beta_fast=16.0,
            beta_slow=2.0,
            mscale=0.7,
            mscale_all_dim=1.3,
            truncate=False,
        ),
    ),
    "mistral, no window": ("Mistral", {"sliding_window": None}),
    "qwen2, windows in the upper layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 1},
    ),
    "qwen3, biases": ("Qwen3", {"attention_bias": True}),
    "gemma3, capped logits": ("Gemma3", {**GEMMA, "final_logit_softcapping": 5.0}),
    "gemma3, capped attention": ("Gemma3", {**GEMMA, "attn_logit_softcapping": ATTENTION_CAP}),
}

MODES = {
    "cached, chunked": EngineOptions(max_num_batched_tokens=48, block_size=16),
    "cached, whole": EngineOptions(max_num_batched_tokens=512, enable_chunked_prefill=False),
    "uncached, chunked": EngineOptions(max_num_batched_tokens=48, enable_prefix_cache=False),
    "uncached, whole": EngineOptions(
        max_num_batched_tokens=512, block_size=16, enable_prefix_cache=False, enable_chunked_prefill=False
    ),
}


def make_model(family: str, overrides: dict[str, Any]) -> Any:
    """Weights large enough for a peaked distribution; norms and biases moved from their neutral start."""
    prefix = f"{family}Text" if family == "Gemma3" else family
    config = getattr(transformers, f"{prefix}Config")(**{**SIZES, **overrides})
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(torch.randn_like(parameter) * (2.0 / parameter.shape[1]) ** 0.5)
    return model


def make_prompts(longest: int = 150) -> list[list[int]]:
    """Lengths around block borders and at random; every fourth begins with one shared prefix."""
    generator = random.Random(11)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 96, longest]
    lengths += [generator.randrange(1, longest) for _ in range(NUM_PROMPTS - len(lengths))]
    shared = [generator.randrange(VOCABULARY) for _ in range(70)]
    prompts = []
    for index, length in enumerate(lengths):
        own = [generator.randrange(VOCABULARY) for _ in range(length)]
        prompts.append((shared[: longest - 1] + own)[:longest] if index % 4 == 0 else own)
    return prompts


@torch.inference_mode()
def teacher_forced(model: Any, prompt: Sequence[int], output: Sequence[int]) -> torch.Tensor:
    """The logits of each output token, [tokens, vocabulary], from one forward pass over all."""
    ids = torch.tensor([[*prompt, *output[:-1]]])
    return model(ids, use_cache=False).logits[0, len(prompt) - 1 :].clone()


@torch.inference_mode()
def token_by_token(model: Any, prompt: Sequence[int], output: Sequence[int]) -> torch.Tensor:
    """The same, as generation computes them; dynamic scaling depends on that."""
    cache = transformers.DynamicCache(config=model.config)
    steps = ([*prompt], *([token] for token in output[:-1]))
    return torch.stack([model(torch.tensor([ids]), cache=cache).logits[0, -1] for ids in steps])


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    made: dict[str, tuple[Any, Path]] = {}

    def get(name: str) -> tuple[Any, Path]:
        if name not in made:
            model = make_model(*(FAMILIES | VARIANTS)[name])
            directory = tmp_path_factory.mktemp("model")
            model.save_pretrained(directory)
            made[name] = model, directory
        return made[name]

    return get


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str, mode: str, saved_model: Any, greedy_run: Any, check_greedy: Any) -> None:
    model, directory = saved_model(family)
    run = greedy_run(directory, MODES[mode])
    for answer in run(make_prompts(), NEW_TOKENS):
        check_greedy(answer, teacher_forced(model, answer.prompt, answer.token_ids))


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant(
    variant: str, saved_model: Any, greedy_run: Any, check_greedy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, directory = saved_model(variant)
    if variant == "gemma3, capped attention":  # transformers reads that cap, but does not hand it on
        capped = partial(modeling_gemma3.eager_attention_forward, softcap=ATTENTION_CAP)
        monkeypatch.setattr(modeling_gemma3, "eager_attention_forward", capped)
    run = greedy_run(directory, MODES["cached, chunked"])
    for answer in run(make_prompts(), NEW_TOKENS):
        check_greedy(answer, teacher_forced(model, answer.prompt, answer.token_ids))


@pytest.mark.parametrize("family", FAMILIES)
def test_warm_cache(family: str, saved_model: Any, greedy_run: Any, check_greedy: Any) -> None:
    """A second run over the same prompts takes its whole blocks from the cache, and answers the same."""
    model, directory = saved_model(family)
    run = greedy_run(directory, MODES["cached, chunked"])
    cold = run(make_prompts(), NEW_TOKENS)
    warm = run(make_prompts(), NEW_TOKENS)
    block_size = MODES["cached, chunked"].block_size
    for before, after in zip(cold, warm, strict=True):
        assert after.cached_tokens == (len(after.prompt) - 1) // block_size * block_size
        assert after.token_ids == before.token_ids
        check_greedy(after, teacher_forced(model, after.prompt, after.token_ids))


@pytest.mark.parametrize("family", FAMILIES)
def test_preempted(family: str, saved_model: Any, greedy_run: Any, check_greedy: Any) -> None:
    """A pool of little more than one context: requests lose their blocks and start again."""
    model, directory = saved_model(family)
    block_bytes = 3 * 2 * 2 * 16 * (32 if family == "qwen3" else 16) * 4
    options = EngineOptions(max_num_batched_tokens=48, block_size=16, kv_memory=18 * block_bytes)
    run = greedy_run(directory, options)
    for answer in run(make_prompts(40)[:30], 60):
        check_greedy(answer, teacher_forced(model, answer.prompt, answer.token_ids))
    assert run.engine.load().preemptions > 0


def test_dynamic_scaling(tmp_path: Path, greedy_run: Any, check_greedy: Any) -> None:
    """Prompts within the trained context, answers far beyond it; transformers' frequencies have a state."""
    overrides = rope("dynamic", factor=4.0) | {"max_position_embeddings": 32}
    make_model("Llama", overrides).save_pretrained(tmp_path)
    prompts = [prompt for prompt in make_prompts(32) if len(prompt) <= 32]
    run = greedy_run(tmp_path, EngineOptions(max_num_batched_tokens=20, block_size=16))
    for answer in run(prompts, 30):
        fresh = make_model("Llama", overrides)
        check_greedy(answer, token_by_token(fresh, answer.prompt, answer.token_ids))
