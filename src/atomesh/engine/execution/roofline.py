"""What a model asks of the machine under it, beside what that machine gives."""

from atomesh.engine.execution.machine_speed import MachineSpeed
from atomesh.model_files.config import ModelConfig
from atomesh.protocol.roofline import Roofline


def roofline(config: ModelConfig, element_bytes: int, speed: MachineSpeed) -> Roofline:
    """By the model's matrices; norms, biases and rotary positions are small beside them."""
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = config.hidden_size * (2 * heads + 2 * kv_heads)
    layers = config.num_layers * (attention + 3 * config.hidden_size * config.intermediate_size)
    head = config.vocab_size * config.hidden_size
    return Roofline(
        weight_bytes=(layers + head) * element_bytes,
        token_flops=2 * layers,
        sequence_flops=2 * (layers + head),
        pair_flops=4 * config.num_layers * heads,
        kv_bytes=2 * config.num_layers * kv_heads * element_bytes,
        flops_per_s=speed.flops_per_s,
        bytes_per_s=speed.bytes_per_s,
    )
