"""Every kind of engine that is not ours, by name; imported on use. A new one is a file, and a line here."""

from collections.abc import Mapping

_HERE = "atomesh.mesh.backends"

KINDS: Mapping[str, str] = {
    "vllm": f"{_HERE}.vllm:VllmBackend",
    "sglang": f"{_HERE}.sglang:SglangBackend",
    "openai": f"{_HERE}.openai:OpenAIBackend",
}
