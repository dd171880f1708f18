"""A request in text, read as far as the mesh needs: what it is about in size, and who may serve it."""

import re
import secrets
from collections.abc import Mapping
from hashlib import blake2b
from typing import TypeVar

import msgspec
from starlette.datastructures import Headers

from atomesh.frontend.anthropic.billing_line import stable_system
from atomesh.frontend.openai.call import POLICY_HEADER
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec

Fields = Mapping[str, msgspec.Raw]
T = TypeVar("T")

WORD_BYTES = 4  # of text, which is taken for a token
MAX_WORDS = 2**19  # longer than any prompt that is served; what comes after them is not told apart
PROMPT_FIELDS = (
    "instructions",
    "system",
    "tools",
    "messages",
    "prompt",
    "input",
)  # in the order of most templates
LIMIT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
UNLIMITED = 2**20
_EMBEDDED = re.compile(rb'"data:[^"]*"')  # a picture, a recording: its bytes are no text

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def parse_fields(body: bytes) -> Fields:
    """What is no JSON object has none: the inner route refuses it, in its own words."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def with_stable_prompt(fields: Fields) -> Fields:
    """Without what changes from request to request and says nothing to a model."""
    return {**fields, "system": stable_system(fields["system"])} if "system" in fields else fields


def field_of(fields: Fields, name: str, kind: type[T], default: T) -> T:
    """The field where it is of this kind."""
    raw = fields.get(name)
    try:
        return default if raw is None else msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return default


def stand_in(fields: Fields, headers: Headers) -> GenerationRequest:
    """What placement and admission see of it: four bytes of its JSON text each are taken for a token.

    Texts that begin alike have tokens that do.
    """
    limits = (field_of(fields, name, int, 0) for name in LIMIT_FIELDS)
    return GenerationRequest(
        request_id=f"text-{secrets.token_hex(16)}",
        prompt_token_ids=words_of(_text(fields)),
        sampling=SamplingSpec(seed=0, max_tokens=max(next(filter(None, limits), UNLIMITED), 1)),
        priority=field_of(fields, "priority", int, 0),
        cache_salt=field_of(fields, "cache_salt", str, ""),
        policy=headers.get(POLICY_HEADER, ""),
        session=_session(field_of(fields, "prompt_cache_key", str, "")),
    )


def words_of(text: bytes) -> list[int]:
    """Its words of four bytes as numbers, the last one filled up; MAX_WORDS at most."""
    text = text[: MAX_WORDS * WORD_BYTES]
    padded = text + bytes(-len(text) % WORD_BYTES)
    return list(memoryview(padded).cast("I"))


def for_server(fields: Fields, model: str, *, may_set_priority: bool) -> bytes:
    """The body as its server shall get it: under the model's own name, with no more say than is allowed."""
    sent = {**fields, "model": msgspec.Raw(msgspec.json.encode(model))}
    if not may_set_priority:
        sent.pop("priority", None)
    return msgspec.json.encode(sent)


def _text(fields: Fields) -> bytes:
    text = b"".join([bytes(fields[name]) for name in PROMPT_FIELDS if name in fields])
    return _EMBEDDED.sub(b'""', text) if b'"data:' in text else text


def _session(key: str) -> str:
    """Of equal keys the same, and short."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() if key else ""
