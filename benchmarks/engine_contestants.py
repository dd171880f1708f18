"""The two that benchmarks/engine.py compares, behind one face: our engine and transformers' `generate`."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from unittest.mock import patch

import torch
from engine_report import OURS, StepAnatomy
from torch.nn import functional

from atomesh.clock import MonotonicClock
from atomesh.engine.attention.torch_attention import TorchBatchAttention
from atomesh.engine.build import build_engine
from atomesh.engine.options import EngineOptions
from atomesh.engine.weights.source import WeightSource
from atomesh.model_files.checkpoint import Checkpoint
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec

Prompts = list[list[int]]


class Contestant(Protocol):
    name: str

    def prefill_s(self, prompt: list[int]) -> float:
        """Seconds from a prompt to its first token."""
        ...

    def decode_s(self, prompts: Prompts, steps: int) -> float:
        """Mean seconds of `steps` decode steps for all prompts together, after the first token of each."""
        ...


class AtomeshEngine:
    """The engine as `atomesh serve` runs it, without server and gateway; greedy."""

    name = OURS

    def __init__(self, checkpoint: Checkpoint, options: EngineOptions) -> None:
        self._engine = build_engine(
            checkpoint, options, secret=b"benchmark", served_name="benchmark", clock=MonotonicClock()
        )
        self.description = self._engine.description
        self._num_requests = 0

    def prefill_s(self, prompt: list[int]) -> float:
        self._engine.reset_prefix_cache()
        start = time.perf_counter()
        self._add(prompt, max_tokens=1)
        while self._engine.has_work():
            self._engine.step()
        return time.perf_counter() - start

    def decode_s(self, prompts: Prompts, steps: int) -> float:
        with self._decoding(prompts, steps):
            start = time.perf_counter()
            self._steps(len(prompts), steps)
            return (time.perf_counter() - start) / steps

    def anatomy(self, prompts: Prompts, steps: int) -> StepAnatomy:
        """The same, with stopwatches around all matrix products and all attention with its KV access."""
        attend = TorchBatchAttention.attend
        products, attention = _Stopwatch(functional.linear), _Stopwatch(attend)
        with (
            self._decoding(prompts, steps),
            patch.object(functional, "linear", products.timed),
            patch.object(TorchBatchAttention, "attend", attention.method()),
        ):
            start = time.perf_counter()
            self._steps(len(prompts), steps)
            whole_s = time.perf_counter() - start
        assert products.calls >= steps
        assert attention.calls >= steps
        return StepAnatomy(len(prompts), whole_s / steps, products.seconds / steps, attention.seconds / steps)

    @contextmanager
    def _decoding(self, prompts: Prompts, steps: int) -> Iterator[None]:
        """Inside, every prompt has its first token, and each engine step decodes one more for all."""
        self._engine.reset_prefix_cache()
        room = self._engine.description.max_model_len - max(map(len, prompts))
        request_ids = [self._add(prompt, max_tokens=room) for prompt in prompts]
        prefilling = set(request_ids)
        while prefilling:
            prefilling -= {delta.request_id for delta in self._engine.step()}
        try:
            yield
        finally:
            for request_id in request_ids:
                self._engine.abort(request_id)

    def _steps(self, batch: int, steps: int) -> None:
        for _ in range(steps):
            deltas = self._engine.step()
            assert len(deltas) == batch

    def _add(self, prompt: list[int], *, max_tokens: int) -> str:
        self._num_requests += 1
        spec = SamplingSpec(seed=0, max_tokens=max_tokens, temperature=0.0)
        request = GenerationRequest(
            request_id=str(self._num_requests), prompt_token_ids=prompt, sampling=spec
        )
        self._engine.add(request)
        return request.request_id


class _Stopwatch:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.seconds = 0.0
        self.calls = 0
        self._function = function

    def timed(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        answer = self._function(*arguments)
        self.seconds += time.perf_counter() - start
        self.calls += 1
        return answer

    def method(self) -> Callable[..., Any]:
        return lambda *arguments: self.timed(*arguments)


class Transformers:
    """Hugging Face `generate` with its own defaults but for greedy choice and a fixed number of tokens."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.name = f"transformers {transformers.__version__}"
        where, file = checkpoint.path, None
        if checkpoint.format == "gguf":
            where, file = checkpoint.path.parent, checkpoint.path.name
        config = transformers.AutoConfig.from_pretrained(where, gguf_file=file)
        self._model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        source = WeightSource(checkpoint)  # its own reader of GGUF wants one more package
        for name, parameter in self._model.named_parameters():
            source.read_into(name, parameter.data)
        self._model.generation_config.eos_token_id = None

    def prefill_s(self, prompt: list[int]) -> float:
        start = time.perf_counter()
        self._generate([prompt], 1)
        return time.perf_counter() - start

    def decode_s(self, prompts: Prompts, steps: int) -> float:
        moments = self._generate(prompts, steps + 1)
        return (moments[-1] - moments[0]) / steps

    @torch.inference_mode()
    def _generate(self, prompts: Prompts, new_tokens: int) -> list[float]:
        """The moments at which each token's logits were there."""
        moments: list[float] = []

        def note(_: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            moments.append(time.perf_counter())
            return logits

        ids = torch.tensor(prompts)
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            logits_processor=[note],
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        assert len(moments) == new_tokens
        return moments
