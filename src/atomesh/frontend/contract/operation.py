"""One thing that a client may ask, as the OpenAPI document tells it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Tag = Literal["generation", "text", "models", "status", "operator", "workers"]

READING = (401, 403, 404, 405, 503)
GENERATING = (400, 401, 403, 404, 405, 408, 413, 415, 429, 500, 501, 503, 504)
OPERATING = (400, 401, 403, 404, 405, 413, 503)


@dataclass(frozen=True, slots=True)
class Operation:
    """`request` and `answer` are types that msgspec can describe, None where there is no JSON body.

    `request` may be left to the endpoint, which says it in its attribute `kind`. `query` are the types of
    the query's parameters. A streamed answer comes as server-sent events when the request says `stream`.
    """

    summary: str
    tag: Tag
    request: Any = None
    answer: Any = None
    is_streamed: bool = False
    is_body_optional: bool = False
    media_type: str = "application/json"
    query: Mapping[str, Any] = field(default_factory=dict)
    refusals: tuple[int, ...] = READING
    has_success: bool = True
    is_admin: bool = False


Key = tuple[str, str]  # method and path, as OpenAPI writes it
Operations = Mapping[Key, Operation]
