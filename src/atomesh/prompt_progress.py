"""A bar on the terminal that counts finished prompts."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def prompt_progress(total: int, *, is_wanted: bool) -> Iterator[Callable[[int], None]]:
    """Yields what to call with the number of prompts just finished.

    Draws on stderr, only where it is wanted and stderr is a terminal.
    """
    if not (is_wanted and sys.stderr.isatty()):
        yield lambda _finished: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)
        yield lambda finished: progress.advance(task, finished)
