"""Where models keep their chat templates: GGUF keys, chat_template.jinja, tokenizer_config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from atomesh.errors import ConfigurationError, ModelFileError
from atomesh.frontend.templates.limits import MAX_TEMPLATE_BYTES
from atomesh.frontend.text.gguf_tokenizer import gguf_named_tokens
from atomesh.frontend.text.hf_tokenizer import named_tokens

if TYPE_CHECKING:
    from atomesh.model_files.checkpoint import Checkpoint

_GGUF_KEY = "tokenizer.chat_template"


def template_sources(checkpoint: "Checkpoint", override: Path | None) -> dict[str, str]:
    """Templates by name; "default" is the one without a name. Empty where the model has none."""
    if override is not None:
        return read_override(override)
    if checkpoint.metadata:
        return _from_metadata(checkpoint.metadata)
    path = checkpoint.find("chat_template.jinja")
    if path is not None:
        return {"default": _read(path)}
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = (checkpoint.read_json(name) or {}).get("chat_template")
        if template is not None:
            return _from_config(template, name)
    return {}


def named_tokens_of(checkpoint: "Checkpoint") -> Mapping[str, str]:
    """The variables bos_token, eos_token, … that templates may use."""
    if checkpoint.metadata:
        return gguf_named_tokens(checkpoint.metadata)
    config = checkpoint.read_json("tokenizer_config.json") or {}
    return named_tokens(config, checkpoint.read_json("special_tokens_map.json") or {})


def _from_metadata(metadata: Mapping[str, object]) -> dict[str, str]:
    sources: dict[str, str] = {}
    for key, value in metadata.items():
        name = "default" if key == _GGUF_KEY else key.removeprefix(_GGUF_KEY + ".")
        if name != key:
            if not isinstance(value, str):
                raise ModelFileError(f"{key} is not text: the file is damaged")
            sources[name] = value
    return sources


def _from_config(template: object, file: str) -> dict[str, str]:
    if isinstance(template, str):
        return {"default": template}
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict)]
        named = {str(entry.get("name")): entry.get("template") for entry in entries}
        sources = {name: text for name, text in named.items() if isinstance(text, str)}
        if len(sources) == len(template):
            return sources
    raise ModelFileError(
        f"chat_template of {file} is neither text nor a list of names and templates; "
        "name another with --chat-template"
    )


def read_override(path: Path) -> dict[str, str]:
    """The template in `path`. Raises ConfigurationError when it cannot be read."""
    try:
        return {"default": _read(path)}
    except OSError as error:
        raise ConfigurationError(
            f"--chat-template {path} cannot be read ({error.strerror}); name a file with a Jinja template"
        ) from error


def _read(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(MAX_TEMPLATE_BYTES + 1)
    if len(data) > MAX_TEMPLATE_BYTES:
        raise ModelFileError(
            f"{path.name} has more than {MAX_TEMPLATE_BYTES} bytes, the limit for a template"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path.name} is not UTF-8 at byte {error.start}; save it as UTF-8") from error
