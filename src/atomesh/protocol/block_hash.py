"""Identity of a KV block: a keyed hash of its tokens and of everything before them.

Two blocks have the same hash only if the same model computed the same tokens after the same prefix under the
same salt. The key comes from the cluster secret, so that gateways, workers and restarts agree, and nobody
else can find a collision (a 128-bit keyed BLAKE2b, RFC 7693).
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from atomesh.protocol.worker import ModelDescription

BlockHash = NewType("BlockHash", bytes)

HASH_BYTES = 16


class BlockHasher:
    def __init__(self, secret: bytes, model: str, block_size: int) -> None:
        """`model` names the weights that compute the KV; `block_size` is in tokens."""
        self.block_size = block_size
        self._key = hashlib.blake2b(b"atomesh block hash\0" + secret, digest_size=32).digest()
        self._model = model
        self._pack = struct.Struct(f"<{block_size}I").pack

    def root(self, salt: str = "", adapter: str = "") -> BlockHash:
        """The parent of a prompt's first block."""
        parts = [part.encode("utf-8", "surrogatepass") for part in (self._model, adapter, salt)]
        framed = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
        return self._digest(b"root" + framed)

    def extend(self, parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
        """The hash of a full block of `block_size` tokens after `parent`."""
        return self._digest(parent + self._pack(*token_ids))

    def chain(self, token_ids: Sequence[int], salt: str = "", adapter: str = "") -> list[BlockHash]:
        """The hashes of the full blocks of a prompt."""
        return self.extend_all(self.root(salt, adapter), token_ids)

    def extend_all(self, parent: BlockHash, token_ids: Sequence[int]) -> list[BlockHash]:
        """The hashes of the full blocks after `parent`; what is left of a partial one counts for nothing."""
        hashes = []
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            parent = self.extend(parent, token_ids[start : start + self.block_size])
            hashes.append(parent)
        return hashes

    def _digest(self, data: bytes) -> BlockHash:
        return BlockHash(hashlib.blake2b(data, digest_size=HASH_BYTES, key=self._key).digest())


def model_hasher(secret: bytes, model: "ModelDescription") -> BlockHasher:
    """The one that the model's workers have, and whoever asks where its prefixes lie."""
    return BlockHasher(secret, weights_name(model), model.block_size)


def weights_name(model: "ModelDescription") -> str:
    """What a hasher calls the weights that compute the KV."""
    return "\0".join((model.name, model.architecture, model.dtype))
