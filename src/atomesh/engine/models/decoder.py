"""What all families share: embed the tokens, run the layers, turn chosen rows into logits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from atomesh.engine.layers.forward_batch import BatchAttention, ForwardBatch
from atomesh.engine.layers.norm import RMSNorm
from atomesh.engine.layers.rotary import RotaryEmbedding, RotaryRows
from atomesh.engine.layers.weight_matrix import make_matrix
from atomesh.engine.layers.weight_slot import Slot, TensorFactory
from atomesh.model_files.config import ModelConfig

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


class DecoderLayer(Protocol):
    def __call__(self, hidden: torch.Tensor, rotary: RotaryRows, attention: BatchAttention) -> torch.Tensor:
        """[tokens, hidden] to the same; may work in place."""
        ...

    def slots(self) -> Iterator[Slot]:
        """Every weight of the layer."""
        ...


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """`rotary[i]` rotates the queries and keys of `layers[i]`; layers of one kind share theirs."""

    layers: Sequence[DecoderLayer]
    rotary: Sequence[RotaryEmbedding]
    norm: RMSNorm
    embedding_scale: float | None = None


class Decoder:
    def __init__(self, config: ModelConfig, factory: TensorFactory, parts: DecoderParts) -> None:
        self._parts = parts
        self._dtype = factory.dtype
        self._softcap = config.logits_softcap
        self._vocab_size = config.vocab_size
        size = (config.vocab_size, config.hidden_size)
        self._embedding = make_matrix(factory, [_EMBEDDING], *size)
        self._is_tied = config.tie_embeddings
        self._head = self._embedding if self._is_tied else make_matrix(factory, [_HEAD], *size)

    def hidden_states(self, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden], before the last norm; writes the KV of the batch's tokens.

        The sum over the layers is kept in float32, whatever the products are computed in.
        """
        hidden = self._embedding.rows(batch.token_ids)
        if self._parts.embedding_scale is not None:
            hidden.mul_(self._parts.embedding_scale)
        rows = {
            rotary: rotary.rows(batch.positions, self._dtype) for rotary in dict.fromkeys(self._parts.rotary)
        }
        for layer, rotary in zip(self._parts.layers, self._parts.rotary, strict=True):
            hidden = layer(hidden, rows[rotary], batch.attention)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] to [rows, vocabulary]."""
        logits = self._head.logits(self._parts.norm(hidden))
        if self._softcap is None:
            return logits
        return logits.div_(self._softcap).tanh_().mul_(self._softcap)

    def slots(self) -> Iterator[Slot]:
        yield self._embedding.slot(_EMBEDDING, 0, self._vocab_size)
        for layer in self._parts.layers:
            yield from layer.slots()
        yield from self._parts.norm.slots()
        if not self._is_tied:
            yield self._head.slot(_HEAD, 0, self._vocab_size)
