"""JSON of somebody else's: what is not as it should be is one error, whatever is wrong with it."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


class UnreadableError(ValueError):
    """It is no JSON, not of the type, nested too deeply, or has a number that is none."""


def decode_json(document: bytes | bytearray, decoder: "msgspec.json.Decoder[T]") -> T:
    """Raises UnreadableError. Numbers are finite."""
    try:
        return decoder.decode(document)
    except RecursionError:
        raise UnreadableError("it is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise UnreadableError(str(error)) from None
