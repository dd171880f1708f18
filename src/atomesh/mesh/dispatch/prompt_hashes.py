"""The block hashes of prompts, as the workers have them."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.protocol.block_hash import BlockHash, BlockHasher, model_hasher
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.worker import ModelDescription

Chain = tuple[BlockHash, ...]


class HashKey(NamedTuple):
    """What of a model goes into the hashes of its blocks."""

    name: str
    architecture: str
    dtype: str
    block_size: int


NO_KEY = HashKey("", "", "", 32)
Chains = Mapping[HashKey, Chain]


class PromptHashes:
    """Of one model: under as many keys as its workers have ways to compute KV, one in almost all meshes."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._hashers: dict[HashKey, BlockHasher] = {}

    def chains(self, request: GenerationRequest, workers: Iterable[WorkerSnapshot]) -> Chains:
        """The hashes of the prompt's full blocks, as any of these workers has them. About 0.1 µs a token."""
        models = [worker.description.model for worker in workers if worker.description is not None]
        hashers = {_key(model): self._hasher(model) for model in models}
        return {
            key: tuple(one.chain(request.prompt_token_ids, request.cache_salt))
            for key, one in hashers.items()
        }

    def _hasher(self, model: ModelDescription) -> BlockHasher:
        key = _key(model)
        if key not in self._hashers:
            self._hashers[key] = model_hasher(self._secret, model)
        return self._hashers[key]


def chain_of(worker: WorkerSnapshot, chains: Chains) -> Chain:
    """As this worker has it; empty where it is not known."""
    return () if worker.description is None else chains.get(_key(worker.description.model), ())


def _key(model: ModelDescription) -> HashKey:
    return HashKey(model.name, model.architecture, model.dtype, model.block_size)
