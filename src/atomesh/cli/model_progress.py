"""Shows on stderr how far the fetching of a model is: one changing line in a terminal, else a few lines."""

import sys
from typing import TextIO

from atomesh.cli.saying import write
from atomesh.model_files.fetch import FetchProgress

_WORDS = {
    "wait": "waiting for another process to fetch the model",
    "download": "downloading the model",
    "unpack": "unpacking the model",
}
_COARSE_PERCENT = 20


class ProgressLine:
    def __init__(self, sink: TextIO) -> None:
        self._sink = sink
        self._in_place = sink.isatty()
        self._shown = ("", -1)

    def __call__(self, progress: FetchProgress) -> None:
        percent = 100 * progress.done_bytes // max(progress.total_bytes, 1)
        if not self._in_place:
            percent -= percent % _COARSE_PERCENT
        if (progress.stage, percent) == self._shown:
            return
        self._shown = (progress.stage, percent)
        megabytes = f"{progress.done_bytes / 1e6:.0f} of {progress.total_bytes / 1e6:.0f} MB"
        text = _WORDS[progress.stage] + ("" if progress.stage == "wait" else f" {percent:3d} % ({megabytes})")
        is_last = progress.stage == "unpack" and percent == 100
        end = "\n" if is_last or not self._in_place else ""
        write(f"\r\033[K{text}{end}" if self._in_place else text + end, self._sink)


def show_progress() -> ProgressLine:
    return ProgressLine(sys.stderr)
