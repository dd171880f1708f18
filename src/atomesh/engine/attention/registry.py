"""From a choice to the attention that it names; a module is imported when it is first asked for."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol

from atomesh.engine.attention.paged_kv import PagedKV
from atomesh.engine.attention.shape import AttentionShape, SequenceSpan
from atomesh.engine.layers.forward_batch import BatchAttention
from atomesh.engine.options import AttentionChoice


class Attention(Protocol):
    """Of one model over one pool."""

    def prepare(self, spans: Sequence[SequenceSpan]) -> BatchAttention:
        """Attention of a step whose flat batch consists of `spans`."""
        ...


ATTENTION: dict[AttentionChoice, str] = {
    "torch": "atomesh.engine.attention.torch_attention:TorchAttention",
    "kernel": "atomesh.engine.attention.cpu_attention:kernel_attention",
}


def build_attention(choice: AttentionChoice, shape: AttentionShape, pool: PagedKV) -> Attention:
    """Raises ConfigurationError if the choice cannot do this shape or pool."""
    module, _, name = ATTENTION[choice].partition(":")
    build: Callable[[AttentionShape, PagedKV], Attention] = getattr(import_module(module), name)
    return build(shape, pool)
