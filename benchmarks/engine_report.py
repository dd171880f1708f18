"""What benchmarks/engine.py found, and how it is shown."""

from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from machine import Machine
from results_page import table

from atomesh.engine.weights.source import WeightSource
from atomesh.model_files.checkpoint import Checkpoint

OURS = "ATOMesh"


@dataclass(frozen=True, slots=True)
class Limits:
    """The machine's best in this run, per second: bytes read, operations in the model's dtype and in bf16."""

    read_bytes: float
    dtype_flops: float
    bf16_flops: float


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a forward pass must read and multiply, whoever runs it; sizes in bytes."""

    weights: int
    kv_per_token: int
    flops_per_token: float
    flops_per_pair: float
    head_flops: float

    @classmethod
    def of(cls, checkpoint: Checkpoint, itemsize: int) -> "ModelCost":
        config, source = checkpoint.config, WeightSource(checkpoint)
        sizes = {name: prod(source.shape(name)) for name in source.names()}
        embedding = sizes["model.embed_tokens.weight"]
        matrices = sum(
            size for name, size in sizes.items() if ".layers." in name and len(source.shape(name)) == 2
        )
        is_tied = config.tie_embeddings
        return cls(
            weights=itemsize * (sum(sizes.values()) - (0 if is_tied else embedding)),
            kv_per_token=itemsize * 2 * config.num_layers * config.num_kv_heads * config.head_dim,
            flops_per_token=2.0 * matrices,
            flops_per_pair=4.0 * config.num_layers * config.num_heads * config.head_dim,
            head_flops=2.0 * embedding,
        )

    def decode_bytes(self, batch: int, context: float) -> float:
        """One decode step reads every weight once, and the KV of each sequence."""
        return self.weights + batch * context * self.kv_per_token

    def prefill_flops(self, tokens: int) -> float:
        """Products of all layers, causal attention, and the head for the last token alone."""
        return (
            self.flops_per_token * tokens + self.flops_per_pair * tokens * (tokens + 1) / 2 + self.head_flops
        )


@dataclass(frozen=True, slots=True)
class DecodeSpeed:
    """Tokens a second of all sequences together, by contestant."""

    batch: int
    tokens_s: dict[str, float]
    read_share: float


@dataclass(frozen=True, slots=True)
class PrefillSpeed:
    """Prompt tokens a second until the first token, by contestant."""

    tokens: int
    tokens_s: dict[str, float]
    dtype_share: float
    bf16_share: float


@dataclass(frozen=True, slots=True)
class StepAnatomy:
    """Seconds of one decode step, and of those within matrix products and attention."""

    batch: int
    whole_s: float
    products_s: float
    attention_s: float

    @property
    def outside(self) -> float:
        return 1.0 - (self.products_s + self.attention_s) / self.whole_s


@dataclass(frozen=True, slots=True)
class Setting:
    """`context` is the length of a decode's prompt, in tokens; `rounds` counts those of all measurements."""

    model: str
    dtype: str
    commit: str
    machine: Machine
    context: int
    steps: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Report:
    setting: Setting
    limits: Limits
    decode: list[DecodeSpeed]
    prefill: list[PrefillSpeed]
    anatomy: list[StepAnatomy]

    @property
    def batch_16_over_1(self) -> float | None:
        by_batch = {speed.batch: speed.tokens_s[OURS] for speed in self.decode}
        return by_batch[16] / by_batch[1] if {1, 16} <= by_batch.keys() else None

    def as_json(self) -> dict[str, Any]:
        outside = {anatomy.batch: anatomy.outside for anatomy in self.anatomy}
        return {**asdict(self), "outside_by_batch": outside, "batch_16_over_1": self.batch_16_over_1}

    def as_markdown(self) -> str:
        parts = [self._heading(), self._decode_table(), self._prefill_table(), *self._notes()]
        return "\n\n".join(parts)

    def _heading(self) -> str:
        s, limits = self.setting, self.limits
        return (
            f"## The engine: {s.model}, {s.dtype}\n\nCommit {s.commit}; {s.machine}. "
            f"In this run the machine reads {limits.read_bytes / 1e9:.1f} GB/s and multiplies matrices at "
            f"{limits.dtype_flops / 1e9:.0f} GFLOP/s in {s.dtype}, {limits.bf16_flops / 1e9:.0f} in "
            f"bfloat16. Medians of {s.rounds} rounds, all in one process, the contestants taking turns; "
            "greedy, random prompts, the same dtype for all."
        )

    def _decode_table(self) -> str:
        names = list(self.decode[0].tokens_s) if self.decode else []
        header = [
            f"decode, {self.setting.context}-token prompts",
            *(f"{name}, tokens/s" for name in names),
            *_ratio_titles(names),
            "of read bandwidth",
        ]
        rows = [
            [f"batch {s.batch}", *_rates(s.tokens_s), *_ratios(s.tokens_s), f"{s.read_share:.0%}"]
            for s in self.decode
        ]
        return table(header, rows)

    def _prefill_table(self) -> str:
        names = list(self.prefill[0].tokens_s) if self.prefill else []
        header = [
            "prefill",
            *(f"{name}, tokens/s" for name in names),
            *_ratio_titles(names),
            f"of the {self.setting.dtype} rate",
            "of the bfloat16 rate",
        ]
        rows = [
            [
                f"{s.tokens} tokens",
                *_rates(s.tokens_s),
                *_ratios(s.tokens_s),
                f"{s.dtype_share:.0%}",
                f"{s.bf16_share:.0%}",
            ]
            for s in self.prefill
        ]
        return table(header, rows)

    def _notes(self) -> list[str]:
        notes = []
        if self.batch_16_over_1 is not None:
            notes.append(f"Batch 16 decodes {self.batch_16_over_1:.1f} times the tokens of batch 1.")
        notes += [
            f"Of a decode step at batch {a.batch}, {a.whole_s * 1e3:.1f} ms, "
            f"{a.products_s / a.whole_s:.0%} goes to matrix products, "
            f"{a.attention_s / a.whole_s:.0%} to attention and {a.outside:.0%} to all else."
            for a in self.anatomy
        ]
        if self.anatomy:
            notes.append(
                "Steps are taken apart by stopwatches around every linear layer, the head's included, and "
                "around each layer's attention, its KV access included."
            )
        return notes


def _rates(tokens_s: dict[str, float]) -> list[str]:
    return [f"{rate:,.1f}" for rate in tokens_s.values()]


def _ratios(tokens_s: dict[str, float]) -> list[str]:
    return [f"{tokens_s[OURS] / rate:.2f}×" for name, rate in tokens_s.items() if name != OURS]


def _ratio_titles(names: list[str]) -> list[str]:
    return [f"{OURS} / {name}" for name in names if name != OURS]
