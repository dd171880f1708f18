"""Whether a file's matrices have the sizes that its configuration says, before memory is taken for them."""

from collections.abc import Iterator, Mapping

from atomesh.errors import ModelFileError
from atomesh.model_files.config import ModelConfig

Shape = tuple[int, ...]


def check_shapes(config: ModelConfig, shapes: Mapping[str, Shape]) -> None:
    """Raises ModelFileError naming the first matrix that is missing or of another shape."""
    for name, expected in matrix_shapes(config):
        found = shapes.get(name)
        if found is None:
            raise ModelFileError(f"tensor {name!r} is missing. Download the model again")
        if found != expected:
            raise ModelFileError(
                f"tensor {name!r} has shape {found}, but the model's configuration says {expected}: "
                "weights and configuration do not belong together"
            )


def matrix_shapes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Name and shape (outputs × inputs) of every matrix, which together are nearly all of the model."""
    hidden, wide = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    if not config.tie_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        attention, mlp = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
        yield f"{attention}q_proj.weight", (queries, hidden)
        yield f"{attention}k_proj.weight", (keys, hidden)
        yield f"{attention}v_proj.weight", (keys, hidden)
        yield f"{attention}o_proj.weight", (hidden, queries)
        yield f"{mlp}gate_proj.weight", (wide, hidden)
        yield f"{mlp}up_proj.weight", (wide, hidden)
        yield f"{mlp}down_proj.weight", (hidden, wide)
