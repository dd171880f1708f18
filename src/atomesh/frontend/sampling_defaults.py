"""How a model's makers would have its tokens chosen, for requests that do not say."""

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from atomesh.errors import InvalidRequestError
from atomesh.protocol.sampling import SamplingParams

if TYPE_CHECKING:
    from atomesh.model_files.checkpoint import Checkpoint

_log = logging.getLogger(__name__)

FILE = "generation_config.json"


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """None where the model says nothing. As in vLLM, they hold for chat and completions alike."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def told(self) -> dict[str, Any]:
        """By name, what the model says, as arguments of SamplingParams."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


NAMES = SamplingDefaults.__struct_fields__
NO_DEFAULTS = SamplingDefaults()


def read_sampling_defaults(checkpoint: "Checkpoint") -> SamplingDefaults:
    """From generation_config.json; a value out of range is left out with a warning."""
    told = checkpoint.read_json(FILE) or {}
    usable = {name: told.get(name) for name in NAMES if _is_usable(name, told.get(name))}
    return msgspec.convert(usable, SamplingDefaults)


def _is_usable(name: str, value: object) -> bool:
    if value is None:
        return False
    try:
        SamplingParams().clone(**{name: value})
    except InvalidRequestError as error:
        _log.warning("%s: %s; it is left out", FILE, error.message)
        return False
    return True
