"""A request's grammar in another engine's words: JSON schemas and regular expressions; our Lark nobody reads.

What an engine cannot be told is refused: an answer is never free where it was to be bound.
"""

from typing import Any

import msgspec

from atomesh.errors import EngineError, InvalidRequestError
from atomesh.protocol.grammar import GrammarSpec
from atomesh.protocol.sampling import SamplingSpec


def vllm_outputs(sampling: SamplingSpec) -> dict[str, Any]:
    """vLLM's field `structured_outputs` (vllm/sampling_params.py, StructuredOutputsParams)."""
    if sampling.grammar is None:
        return {}
    kind, source = _readable(sampling.grammar)
    wanted = {"json": source} if kind == "json_schema" else {"regex": source}
    return {"structured_outputs": {**wanted, "disable_any_whitespace": True}}


def sglang_outputs(sampling: SamplingSpec) -> dict[str, Any]:
    """SGLang's sampling parameters `json_schema` and `regex` (sglang/srt/sampling/sampling_params.py)."""
    if sampling.grammar is None:
        return {}
    kind, source = _readable(sampling.grammar)
    return (
        {"json_schema": msgspec.json.encode(source).decode()} if kind == "json_schema" else {"regex": source}
    )


def check_continues(sampling: SamplingSpec, num_tokens: int) -> None:
    """Raises EngineError where an engine would have to go on within an answer that is bound."""
    if sampling.grammar is not None and num_tokens > 0:
        raise EngineError(
            "the engine that was answering was lost, and another cannot go on within an answer that a "
            "grammar binds; ask again"
        )


def _readable(grammar: GrammarSpec) -> tuple[str, Any]:
    """The kind, and a schema as an object or an expression as its text."""
    if grammar.begins_after:
        raise InvalidRequestError(
            "an answer that is bound only after its reasoning is not taken by this model's engine; ask "
            "without reasoning, or without the grammar",
            param="structured_outputs",
        )
    match grammar.kind:
        case "json_schema":
            return grammar.kind, msgspec.json.decode(grammar.source)
        case "regex":
            return grammar.kind, grammar.source
    raise InvalidRequestError(
        "a grammar in Lark, and tool calls that must be made, are not taken by this model's engine; ask "
        "with a JSON schema, a regular expression or a choice",
        param="structured_outputs",
    )
