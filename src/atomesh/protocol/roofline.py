"""What bounds a worker's steps, for the mesh to expect something of it before it has made one."""

import msgspec


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """A step reads `weight_bytes`. Each prompt token takes `token_flops` of matrix products, each token that
    decodes `sequence_flops`; for each token that such a one attends to there are `pair_flops`, and `kv_bytes`
    to read. `flops_per_s` and `bytes_per_s` are the machine's, as measured at the worker's start.
    """

    weight_bytes: int
    token_flops: int
    sequence_flops: int
    pair_flops: int
    kv_bytes: int
    flops_per_s: float
    bytes_per_s: float
