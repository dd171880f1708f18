"""Which weights computed some KV: two workers may share it only if these are the same."""

from typing import TYPE_CHECKING

import msgspec
import xxhash

if TYPE_CHECKING:
    from atomesh.model_files.checkpoint import Checkpoint


def weights_digest(checkpoint: "Checkpoint", packed_as: str | None = None) -> str:
    """32 hexadecimal digits over the configuration and every stored tensor, wherever the files lie.

    `packed_as` is what they are packed as for the C++ kernels, if they are: rounded otherwise, they make
    other KV. Guards against mistakes, not against an attacker: who holds the cluster's secret is believed.
    """
    digest = xxhash.xxh3_128(msgspec.json.encode(checkpoint.config))
    if packed_as is not None:
        digest.update(packed_as.encode())
    for name in sorted(checkpoint.tensors):
        tensor = checkpoint.tensors[name]
        digest.update(msgspec.json.encode((name, tensor.shape, tensor.encoding.name)))
        digest.update(tensor.data)
    return digest.hexdigest()
