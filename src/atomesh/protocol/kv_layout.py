"""What two workers must have in common before one may use the other's KV."""

import msgspec

from atomesh.protocol.bounds import BlockSize, Count, Name, Words


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How KV lies in a block, and which weights computed it.

    A block is one opaque span of `block_bytes`: all layers, keys, values and scales, in the order that `name`
    stands for. `weights` is a digest of the model's weights, `model` the name that clients know.
    """

    name: Name
    model: Words
    weights: Words
    dtype: Words
    block_size: BlockSize
    num_layers: Count
    num_kv_heads: Count
    head_dim: Count
    block_bytes: Count


def difference(ours: KVLayout, theirs: KVLayout) -> str | None:
    """The first field that differs, with both values; None when KV may be shared."""
    if ours == theirs:
        return None
    for field in KVLayout.__struct_fields__:
        here, there = getattr(ours, field), getattr(theirs, field)
        if here != there:
            return f"{field} is {here!r} here and {there!r} there"
    return None
