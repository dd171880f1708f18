"""GGUF's tensor names and conventions in terms of Hugging Face's.

Source: llama.cpp, gguf-py/gguf/tensor_mapping.py and convert_hf_to_gguf.py.
"""

import re
from collections.abc import Mapping

from atomesh.model_files.config import Family

_GLOBAL = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_LAYER = {
    **_LAYER,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,3})\.([a-z_]+)\.(weight|bias)")


def hf_name(gguf_name: str, family: Family) -> str | None:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`; None if it is no parameter."""
    layer_names = _inverse(_GEMMA_LAYER if family == "gemma3" else _LAYER)
    match = _BLOCK.fullmatch(gguf_name)
    if match is not None:
        module = layer_names.get(match[2])
        return None if module is None else f"model.layers.{match[1]}.{module}.{match[3]}"
    stem, _, kind = gguf_name.rpartition(".")
    module = _inverse(_GLOBAL).get(stem)
    return None if module is None or kind not in ("weight", "bias") else f"{module}.{kind}"


def rotates_pairs(name: str, family: Family) -> bool:
    """Whether llama.cpp's converter interleaved this tensor's rows: q and k of the Llama architecture."""
    return family == "llama" and ("self_attn.q_proj" in name or "self_attn.k_proj" in name)


def norm_offset(name: str, family: Family) -> float:
    """What the converter added: Gemma multiplies by 1 + weight, llama.cpp by the stored value."""
    return 1.0 if family == "gemma3" and name.endswith("norm.weight") else 0.0


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {value: key for key, value in names.items()}
