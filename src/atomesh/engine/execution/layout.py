"""How this engine's KV lies in its blocks, for a peer to compare with its own."""

from atomesh.engine.execution.kv_sizing import block_bytes
from atomesh.model_files.config import ModelConfig
from atomesh.protocol.kv_layout import KVLayout
from atomesh.protocol.worker import ModelDescription

LAYOUT = "layer,kv,head,token,dim"  # of KVPool.storage, within a block


def kv_layout(config: ModelConfig, model: ModelDescription, weights: str, element_bytes: int) -> KVLayout:
    """`weights` is their digest, `element_bytes` the size of one number in the pool."""
    return KVLayout(
        name=LAYOUT,
        model=model.name,
        weights=weights,
        dtype=model.dtype,
        block_size=model.block_size,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_bytes=block_bytes(config, model.block_size, element_bytes),
    )
