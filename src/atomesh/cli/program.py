"""How this program is called from the shell that it was started in."""

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "atomesh"


def program_words() -> str:
    """`atomesh` where the PATH leads to this very program, else its path from the current directory."""
    running = Path(sys.argv[0])
    if running.name != NAME or not running.is_file():  # python -m
        return f"{shlex.quote(sys.executable)} -m atomesh"
    found = shutil.which(NAME)
    if found is not None and Path(found).samefile(running):
        return NAME
    relative = os.path.relpath(running)
    return shlex.quote(
        min(relative if os.sep in relative else f".{os.sep}{relative}", str(running.absolute()), key=len)
    )
