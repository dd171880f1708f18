"""Server-sent events as a client reads them: whole frames out of a stream of bytes."""

import re

from atomesh.errors import EngineError

MAX_FRAME_BYTES = 8 * 2**20
DONE = b"[DONE]"
_END = re.compile(rb"\r?\n\r?\n")


class SseReader:
    """Feed it bytes, get the frames that are complete, each with the empty line that ends it."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def is_between_frames(self) -> bool:
        return not self._rest

    def feed(self, data: bytes) -> list[bytes]:
        """Raises EngineError for a frame longer than MAX_FRAME_BYTES."""
        searched = len(self._rest)
        self._rest += data
        frames, begin = [], 0
        for match in _END.finditer(self._rest, max(searched - 3, 0)):
            frames.append(bytes(self._rest[begin : match.end()]))
            begin = match.end()
        del self._rest[:begin]
        if len(self._rest) > MAX_FRAME_BYTES:
            raise EngineError(
                f"the engine sent an event of more than {MAX_FRAME_BYTES >> 20} MiB; ask for fewer choices "
                "or logprobs"
            )
        return frames


def data_of(frame: bytes) -> bytes:
    """The frame's data, its lines joined; empty for a comment."""
    if frame.startswith(b"data: ") and frame.count(b"\n") <= 2:
        return frame[6:].rstrip()
    lines = (line for line in frame.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
