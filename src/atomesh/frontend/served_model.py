"""A model as the API offers it: its names, its text side and the service that generates its tokens."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atomesh.frontend.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from atomesh.frontend.token_service import TokenService
from atomesh.frontend.tool_calls.registry import DEFAULT_DIALECT

if TYPE_CHECKING:
    from atomesh.frontend.reasoning.dialect import ReasoningDialect
    from atomesh.frontend.templates.chat_template import ChatTemplate
    from atomesh.frontend.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`name` is the id in /v1/models; a request may also name it by any of `aliases`. `created` is in Unix
    seconds. `sampling_defaults` hold for requests that do not say. What `is_relayed` is another server's,
    text and all: its requests never come as far as the routes of this package. `reasoning_dialect` is how it
    tells its reasoning from its answer, None where it does not reason; `tool_dialect` is the name of how it
    writes tool calls.
    """

    name: str
    tokenizer: "Tokenizer"
    chat_template: "ChatTemplate | None"
    service: TokenService
    created: int
    aliases: tuple[str, ...] = field(default=())
    sampling_defaults: SamplingDefaults = NO_DEFAULTS
    is_relayed: bool = False
    reasoning_dialect: "ReasoningDialect | None" = None
    tool_dialect: str = DEFAULT_DIALECT
