"""ATOMesh: serve large language models with prefill and decode apart.

The public names are resolved on first use, so that importing this package imports no torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atomesh.llm import LLM, CompletionOutput, RequestOutput
    from atomesh.protocol.sampling import SamplingParams
    from atomesh.protocol.structured_outputs import StructuredOutputsParams

__version__ = "0.1.0"
__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "StructuredOutputsParams"]

_HOMES = {
    "LLM": "atomesh.llm",
    "RequestOutput": "atomesh.llm",
    "CompletionOutput": "atomesh.llm",
    "SamplingParams": "atomesh.protocol.sampling",
    "StructuredOutputsParams": "atomesh.protocol.structured_outputs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'atomesh' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
