"""Traces of requests: the narrow door to whatever keeps them.

Whoever traces wraps what is traced; nothing that decides or serves knows of spans.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

Attribute = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Attribute]


class Span(Protocol):
    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        ...

    @property
    def traceparent(self) -> str:
        """As W3C Trace Context writes it, for whoever continues the trace."""
        ...

    @property
    def start_ns(self) -> int: ...

    def rename(self, name: str) -> None: ...

    def note(self, attributes: Attributes) -> None: ...

    def fail(self, error_type: str) -> None:
        """It ends in an error of that kind; its words are not kept, which may quote a request."""
        ...

    def end(self) -> None: ...

    def record_child(self, name: str, start_ns: int, duration_s: float, attributes: Attributes) -> None:
        """What is only known once it is over."""
        ...


class Tracing(Protocol):
    def request(self, name: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        """A server's span, around what runs inside; it goes on with the trace that `headers` name, if any."""
        ...

    def child(self, name: str, attributes: Attributes, *, is_call: bool = False) -> Span:
        """Of the span around what runs now; to be ended. `is_call`: another process does the work."""
        ...

    def close(self) -> None:
        """Send what has not been sent."""
        ...
