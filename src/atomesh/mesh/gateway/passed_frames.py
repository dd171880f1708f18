"""A stream of events on its way through: whole frames and no half ones, and what will tell what it took.

Nothing is parsed. Frames that arrive together stay together; of those that went through, the last are kept.
"""

import re

from atomesh.errors import EngineError

MAX_FRAME_BYTES = 8 * 2**20
DONE_STARTS = (b"data: [DONE]", b"data:[DONE]")
# What ends a stream begins with one of these, whoever sends it.
LAST_STARTS = (*DONE_STARTS, b"event: error", b'data: {"error"', b'data:{"error"')
_HINTS = (b"[DONE]", b"error")  # at least one of them is in every such frame
_END = re.compile(rb"\r?\n\r?\n")
_USAGE = b'"usage"'


class PassedFrames:
    """`last` is the frame that ends the stream, once it has come; `num_frames` and `num_bytes`
    are of those before it."""

    def __init__(self) -> None:
        self.last: bytes | None = None
        self.num_frames = self.num_bytes = 0
        self._rest = bytearray()
        self._newest = self._newest_but_one = self._with_usage = b""

    @property
    def is_between_frames(self) -> bool:
        return not self._rest

    @property
    def is_done(self) -> bool:
        return self.last is not None and self.last.startswith(DONE_STARTS)

    @property
    def tail(self) -> bytes:
        """What is likeliest to say what the answer took."""
        return self._with_usage + self._newest_but_one + self._newest

    def feed(self, data: bytes) -> bytes:
        """The frames that are whole now, up to the last. Raises EngineError for one over MAX_FRAME_BYTES."""
        rest = self._rest
        if rest:
            searched = len(rest)
            rest += data
            end = _end_of_frames(rest, max(searched - 3, 0))
            whole = bytes(rest[:end])
            del rest[:end]
        else:
            end = _end_of_frames(data, 0)
            whole = data[:end]
            rest += data[end:]
        if len(rest) > MAX_FRAME_BYTES:
            raise EngineError(
                f"the server sent an event of more than {MAX_FRAME_BYTES >> 20} MiB; ask for fewer choices "
                "or logprobs"
            )
        if _HINTS[0] in whole or _HINTS[1] in whole:
            whole = self._before_last(whole)
        if whole:
            self._keep(whole)
        return whole

    def _keep(self, whole: bytes) -> None:
        self.num_bytes += len(whole)
        self.num_frames += whole.count(b"\n\n") or whole.count(b"\n\r\n")
        self._newest_but_one, self._newest = self._newest, whole
        if _USAGE in whole:
            self._with_usage = whole

    def _before_last(self, whole: bytes) -> bytes:
        begin = 0
        for match in _END.finditer(whole):
            if whole.startswith(LAST_STARTS, begin):
                self.last = whole[begin : match.end()]
                return whole[:begin]
            begin = match.end()
        return whole


def _end_of_frames(data: bytes | bytearray, since: int) -> int:
    """Where the last of the whole frames ends; 0 where none is."""
    plain, with_returns = data.rfind(b"\n\n", since), data.rfind(b"\n\r\n", since)
    return max(plain + 2 if plain >= 0 else 0, with_returns + 3 if with_returns >= 0 else 0)
