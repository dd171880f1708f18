"""What an operator may ask, parsed: bodies of the admin routes."""

from typing import TypeVar

import msgspec
from starlette.requests import Request

from atomesh.errors import InvalidRequestError, RequestTooLargeError
from atomesh.mesh.backends.foreign_json import UnreadableError, decode_json
from atomesh.protocol.worker import PRESETS, Role, RoleWeights

MAX_BODY_BYTES = 64 * 1024
MAX_WEIGHT = 1000.0
B = TypeVar("B", bound=msgspec.Struct)


class BothWeights(msgspec.Struct, frozen=True):
    """As RoleWeights, without defaults: half a change would be another role than was meant."""

    prefill: float | None = None
    decode: float | None = None

    def checked(self) -> RoleWeights:
        """Raises InvalidRequestError that names the weight which is missing or out of range."""
        return RoleWeights(
            prefill=_checked_weight("prefill", self.prefill), decode=_checked_weight("decode", self.decode)
        )


class RoleChange(msgspec.Struct, frozen=True):
    """A preset's name, or both weights."""

    role: Role | None = None
    weights: BothWeights | None = None

    def chosen(self) -> RoleWeights:
        """Raises InvalidRequestError unless exactly one of the two is given, whole and in range."""
        if self.role is not None and self.weights is not None:
            raise InvalidRequestError("role and weights exclude each other; send one of them", param="role")
        if self.weights is not None:
            return self.weights.checked()
        if self.role is not None:
            return PRESETS[self.role]
        raise InvalidRequestError('send either {"role": …} or {"weights": {"prefill": …, "decode": …}}')


class NewWorker(msgspec.Struct, frozen=True):
    """`address` as for `--worker`: HOST:PORT or unix:PATH."""

    address: str


class Fault(msgspec.Struct, frozen=True):
    """`worker` is its id; without one, all workers get the fault. `count` 0 disarms the point."""

    point: str
    count: int = 1
    argument: float = 0.0
    worker: str | None = None


async def read_json(request: Request, kind: type[B], if_empty: B | None = None) -> B:
    """`if_empty` stands for a body without a byte, where that is allowed.

    Raises RequestTooLargeError, and InvalidRequestError for a body that is not of this kind."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise RequestTooLargeError(f"the body is longer than {MAX_BODY_BYTES} bytes; send a shorter one")
    if not body and if_empty is not None:
        return if_empty
    try:
        return decode_json(body, msgspec.json.Decoder(kind))
    except UnreadableError as error:
        raise InvalidRequestError(f"the body is not what this route takes: {error}") from None


def read_flag(request: Request, name: str) -> bool:
    """A query parameter that is true or false; false when absent."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false", "1", "0"):
        raise InvalidRequestError(f"{name} is {text[:50]!r}; write true or false", param=name)
    return text in ("true", "1")


def _checked_weight(name: str, value: float | None) -> float:
    if value is None:
        raise InvalidRequestError(
            f"weights.{name} is missing; send both prefill and decode", param=f"weights.{name}"
        )
    if not 0.0 <= value <= MAX_WEIGHT:
        raise InvalidRequestError(
            f"weights.{name} is {value}; it must lie in [0, {MAX_WEIGHT:g}]", param=f"weights.{name}"
        )
    return value
