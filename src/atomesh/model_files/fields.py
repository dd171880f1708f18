"""Typed, bounded access to untrusted key/values: config.json or GGUF metadata."""

import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atomesh.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class Limits:
    low: float
    high: float

    def __str__(self) -> str:
        return f"from {self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Fields:
    """Each getter returns a checked value or raises ModelFileError naming source, field, value and limit.

    A missing field, or one that is null, takes `default`; without a default it is an error.
    """

    source: str
    values: Mapping[str, object]

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, limits: Limits, default: int | None = None) -> int:
        value = self._present(key, default)
        if type(value) is not int or not limits.low <= value <= limits.high:
            raise self.refuse(key, value, f"an integer {limits}")
        return value

    def optional_integer(self, key: str, limits: Limits) -> int | None:
        return self.integer(key, limits) if self.has(key) else None

    def number(self, key: str, limits: Limits, default: float | None = None) -> float:
        value = self._present(key, default)
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not limits.low <= number <= limits.high:  # also false for NaN
            raise self.refuse(key, value, f"a number {limits}")
        return number

    def optional_number(self, key: str, limits: Limits) -> float | None:
        return self.number(key, limits) if self.has(key) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, value, "true or false")
        return value

    def choice(self, key: str, allowed: Iterable[str], default: str | None = None) -> str:
        value = self._present(key, default)
        names = sorted(allowed)
        if not isinstance(value, str) or value not in names:
            raise self.refuse(key, value, "one of " + ", ".join(names))
        return value

    def mapping(self, key: str) -> "Fields":
        """A nested object; empty when missing."""
        value = self._present(key, {})
        if not isinstance(value, Mapping):
            raise self.refuse(key, value, "an object")
        return Fields(f"{self.source}: {key}", value)

    def items(self, key: str, limit: int) -> list[object]:
        """A list of at most `limit` elements; empty when missing."""
        value = self._present(key, [])
        if not isinstance(value, list) or len(value) > limit:
            raise self.refuse(key, value, f"a list of at most {limit} elements")
        return value

    def refuse(self, key: str, value: object, expected: str) -> ModelFileError:
        return ModelFileError(
            f"{self.source}: {key} is {reprlib.repr(value)}; it must be {expected}. "
            "Download the model again, or use one of a supported family"
        )

    def _present(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise ModelFileError(f"{self.source}: {key} is missing. Download the model again")
        return default
