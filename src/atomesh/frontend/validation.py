"""Fields and headers that are refused by name, so that nothing a client relies on is dropped in silence."""

from collections.abc import Collection, Mapping

import msgspec
from starlette.datastructures import Headers

from atomesh.errors import InvalidRequestError

_CONSTRAINED = "is an older name; ask with structured_outputs or response_format"
_INTERNAL = "is internal to the serving mesh and not taken from clients; remove it"
_UNSUPPORTED = "is not supported by this version; remove it"
_OF_CHATS = "belongs to /v1/chat/completions, where answers are told apart from reasoning; remove it"

_REFUSED_FIELDS = {
    "guided_json": _CONSTRAINED,
    "guided_regex": _CONSTRAINED,
    "guided_choice": _CONSTRAINED,
    "guided_grammar": _CONSTRAINED,
    "guided_json_object": _CONSTRAINED,
    "guided_decoding_backend": _CONSTRAINED,
    "guided_whitespace_pattern": _CONSTRAINED,
    "kv_transfer_params": _INTERNAL,
    "ec_transfer_params": _INTERNAL,
    "bootstrap_host": _INTERNAL,
    "bootstrap_port": _INTERNAL,
    "bootstrap_room": _INTERNAL,
    "data_parallel_rank": _INTERNAL,
    "disagg_prefill_dp_rank": _INTERNAL,
    "tool_choice": "belongs to chats, where the model is told of its tools; remove it",
    "tools": "belong to chats, where the model is told of them; remove them or set tool_choice to 'none'",
    "functions": "is an older name; send tools",
    "function_call": "is an older name; send tool_choice",
    "reasoning_effort": _OF_CHATS,
    "thinking_token_budget": _OF_CHATS,
    "include_reasoning": _OF_CHATS,
    "modalities": "can only be ['text']; remove it",
    "audio": _UNSUPPORTED,
    "chat_template": "cannot be sent by a client; the operator sets it",
    "prompt_embeds": _UNSUPPORTED,
    "suffix": "belongs to /v1/completions; remove it, or send the rendered prompt there",
    "use_beam_search": _UNSUPPORTED,
}
# What asks for nothing but the default, as some clients write out what others leave out.
_DEFAULTS: Mapping[str, tuple[object, ...]] = {
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "suffix": ("",),
    "use_beam_search": (False,),
    "include_reasoning": (True,),
}
_LONGEST_DEFAULT = 100
_REFUSED_HEADERS = ("x-atomesh-", "x-data-parallel-rank", "x-prefiller-host-port", "x-kv-transfer")


def refused_fields() -> frozenset[str]:
    """Their names, whatever they ask for."""
    return frozenset(_REFUSED_FIELDS)


def refuse_fields(fields: Mapping[str, msgspec.Raw], own_fields: Collection[str] = ()) -> None:
    """Raises InvalidRequestError for the first refused field that asks for anything; null is absence.

    One list for every generating route, so that none drops in silence what another refuses; but not
    `own_fields`, which mean something else where they were sent.
    """
    for name, reason in _REFUSED_FIELDS.items():
        if name in fields and name not in own_fields and _asks(name, fields):
            raise InvalidRequestError(f"{name} {reason}", param=name)


def refuse_internal_fields(fields: Mapping[str, msgspec.Raw]) -> None:
    """As `refuse_fields`, but only what concerns the mesh's own workings: others will read the body."""
    for name, reason in _REFUSED_FIELDS.items():
        if reason is _INTERNAL and name in fields and _asks(name, fields):
            raise InvalidRequestError(f"{name} {reason}", param=name)


def _asks(name: str, fields: Mapping[str, msgspec.Raw]) -> bool:
    if name == "tools" and "tool_choice" in fields and _short_value(fields["tool_choice"]) == "none":
        return False
    value = _short_value(fields[name])
    return value is not None and value not in _DEFAULTS.get(name, ())


def _short_value(raw: msgspec.Raw) -> object:
    """The value, or the raw text where that is longer than any default, or no value, as `"\\ud800"`."""
    text = bytes(raw)
    try:
        return msgspec.json.decode(text) if len(text) <= _LONGEST_DEFAULT else text
    except msgspec.DecodeError:
        return text


def refuse_internal_headers(headers: Headers) -> None:
    """Raises InvalidRequestError for a header that only the mesh itself may send."""
    for name in headers:
        if name.startswith(_REFUSED_HEADERS):
            raise InvalidRequestError(f"the header {name[:100]} {_INTERNAL}", param=name[:100])


def parse_timeout(headers: Headers, limit_s: float) -> float | None:
    """Seconds from `x-request-timeout`, None where it is absent."""
    text = headers.get("x-request-timeout")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= limit_s:
        raise InvalidRequestError(
            f"x-request-timeout is {text[:40]!r}; it must be seconds in (0, {limit_s:g}]",
            param="x-request-timeout",
        )
    return seconds
