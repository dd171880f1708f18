"""Server-sent events: bytes in, events out (WHATWG HTML, section 9.2)."""

from dataclasses import dataclass

MAX_LINE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """`name` is empty where the stream gave none; `data` is its data lines, joined."""

    data: str
    name: str = ""


class EventDecoder:
    """Knows no socket; comments (keep-alives) and events without data are dropped.

    Raises ValueError on a line longer than MAX_LINE_BYTES.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that `chunk` completes, in order; what is incomplete is kept for the next call."""
        *lines, self._tail = (self._tail + chunk).split(b"\n")
        if len(self._tail) > MAX_LINE_BYTES:
            raise ValueError(f"a line of the stream has more than {MAX_LINE_BYTES} bytes")
        events = []
        for line in lines:
            event = self._read_line(line.removesuffix(b"\r").decode("utf-8", "replace"))
            if event is not None:
                events.append(event)
        return events

    def _read_line(self, line: str) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None

    def _dispatch(self) -> ServerEvent | None:
        name, data = self._name, self._data
        self._name, self._data = "", []
        return ServerEvent("\n".join(data), name) if data else None
