"""Fields and headers that are refused by name, so that nothing a client relies on is dropped in silence."""

from collections.abc import Mapping

import msgspec
from starlette.datastructures import Headers

from atomesh.errors import InvalidRequestError

_GUIDED = "is the old spelling and not supported"
_INTERNAL = "is internal to the serving mesh and not taken from clients; remove it"
_UNSUPPORTED = "is not supported by this server; remove it"

_REFUSED_FIELDS = {
    "guided_json": _GUIDED,
    "guided_regex": _GUIDED,
    "guided_choice": _GUIDED,
    "guided_grammar": _GUIDED,
    "guided_json_object": _GUIDED,
    "guided_decoding_backend": _GUIDED,
    "guided_whitespace_pattern": _GUIDED,
    "kv_transfer_params": _INTERNAL,
    "ec_transfer_params": _INTERNAL,
    "bootstrap_host": _INTERNAL,
    "bootstrap_port": _INTERNAL,
    "bootstrap_room": _INTERNAL,
    "data_parallel_rank": _INTERNAL,
    "disagg_prefill_dp_rank": _INTERNAL,
    "structured_outputs": _UNSUPPORTED,
    "reasoning_effort": _UNSUPPORTED,
    "functions": _UNSUPPORTED,
    "function_call": _UNSUPPORTED,
    "audio": _UNSUPPORTED,
    "chat_template": "cannot be sent by a client; the operator sets it",
    "prompt_embeds": _UNSUPPORTED,
    "suffix": _UNSUPPORTED,
    "use_beam_search": _UNSUPPORTED,
}
_REFUSED_HEADERS = ("x-atomesh-", "x-data-parallel-rank", "x-prefiller-host-port", "x-kv-transfer")
_EMPTY = frozenset({b"null", b"false", b'""', b"[]", b"{}"})


def refuse_fields(fields: Mapping[str, msgspec.Raw]) -> None:
    """Raises InvalidRequestError for the first refused field that says anything."""
    for name in fields.keys() & _REFUSED_FIELDS.keys():
        if bytes(fields[name]).strip() not in _EMPTY:
            raise InvalidRequestError(f"{name} {_REFUSED_FIELDS[name]}", param=name)


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
