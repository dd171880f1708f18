"""What two workers must have in common before one may use the other's KV."""

import msgspec


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How KV lies in a block, and which weights computed it.

    A block is one opaque span of `block_bytes`: all layers, keys, values and scales, in the order that `name`
    stands for. `weights` is a digest of the model's weights, `model` the name that clients know.
    """

    name: str
    model: str
    weights: str
    dtype: str
    block_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_bytes: int


def difference(ours: KVLayout, theirs: KVLayout) -> str | None:
    """The first field that differs, with both values; None when KV may be shared."""
    if ours == theirs:
        return None
    for field in KVLayout.__struct_fields__:
        here, there = getattr(ours, field), getattr(theirs, field)
        if here != there:
            return f"{field} is {here!r} here and {there!r} there"
    return None
