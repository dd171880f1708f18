"""The dialects of tool calls by name, and which of them a chat template speaks."""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module

from atomesh.errors import ConfigurationError
from atomesh.frontend.tool_calls.dialect import Dialect

DEFAULT_DIALECT = "hermes"

_HOME = "atomesh.frontend.tool_calls.dialects"
DIALECTS: Mapping[str, str] = {
    "hermes": f"{_HOME}.hermes:HERMES",
    "llama3_json": f"{_HOME}.llama3_json:LLAMA3_JSON",
    "mistral": f"{_HOME}.mistral:MISTRAL",
    "qwen3_coder": f"{_HOME}.qwen3_coder:QWEN3_CODER",
    "deepseek_v3": f"{_HOME}.deepseek_v3:DEEPSEEK_V3",
    "deepseek_v31": f"{_HOME}.deepseek_v3:DEEPSEEK_V31",
    "kimi_k2": f"{_HOME}.kimi_k2:KIMI_K2",
    "pythonic": f"{_HOME}.pythonic:PYTHONIC",
    "harmony": f"{_HOME}.harmony:HARMONY",
}
# What a template of the dialect says, all of it; the first line that holds, decides.
_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("kimi_k2", ("<|tool_call_argument_begin|>",)),
    ("deepseek_v3", ("<｜tool▁call▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁call▁begin｜>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("hermes", ("<tool_call>",)),
    ("pythonic", ("<|python_start|>",)),
    ("pythonic", ("func_name1(params_name1=",)),
    ("pythonic", ("tool_code",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("llama3_json", ('{"name": function name, "parameters":',)),
)


def find_tool_dialect(templates: Iterable[str]) -> str:
    """The name of the dialect that a model's chat templates speak; the default where they speak none."""
    text = "\n".join(templates)
    for name, signs in _SIGNS:
        if all(sign in text for sign in signs):
            return name
    return DEFAULT_DIALECT


def check_dialect(name: str) -> None:
    """Raises ConfigurationError for a --tool-call-parser that there is not."""
    if name not in DIALECTS:
        raise ConfigurationError(
            f"--tool-call-parser is {name[:64]!r}; it must be one of {', '.join(sorted(DIALECTS))}"
        )


@cache
def load_dialect(name: str) -> Dialect:
    module, _, attribute = DIALECTS[name].partition(":")
    dialect: Dialect = getattr(import_module(module), attribute)
    return dialect
