"""What a back end is given: where its news go, and what it may ask of the gateway."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from atomesh.clock import Clock
from atomesh.mesh.backends.hand_offs import HandOffs
from atomesh.mesh.backends.knowledge import Knowledge
from atomesh.mesh.backends.text_servers import TextServers
from atomesh.mesh.cluster.registry import WorkerRegistry


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model whose files lie on this machine; `path` may be relative to nothing but this process."""

    name: str
    path: str
    architecture: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]


def _nowhere(_name: str) -> LocalModel | None:
    return None


@dataclass(frozen=True, slots=True)
class BackendContext:
    """`find_model` finds a directory, a GGUF file or a known name without fetching anything; it may block.

    None: the text side of such a model is the engine's own, and so is its text API. The key of block hashes
    follows from `secret`, the cluster's. `refusals` counts, by reason, who is no worker.
    """

    registry: WorkerRegistry
    clock: Clock
    texts: TextServers
    knowledge: Knowledge = field(default_factory=Knowledge)
    hand_offs: HandOffs = field(default_factory=HandOffs)
    find_model: Callable[[str], LocalModel | None] = _nowhere
    secret: bytes = b""
    refusals: Counter[str] = field(default_factory=Counter)
