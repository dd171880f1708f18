"""How the cores are divided between workers, and a server of each shape, as a user would start it."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atomesh.testing.served_process import command, free_port

STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class Shape:
    """`flags` are those of `atomesh serve`."""

    text: str
    name: str
    flags: tuple[str, ...]
    is_apart: bool

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """ "1+1" is prefill workers + decode workers, "1x512" unified workers x tokens of a chunk.

        Raises ValueError for anything else.
        """
        found = re.fullmatch(r"([1-9]\d*)([+x])([1-9]\d*)", text)
        if found is None:
            raise ValueError(
                f"{text!r} is no shape: write 1+1 for prefill + decode workers, 1x512 for unified x chunk"
            )
        first, sign, second = found.groups()
        if sign == "+":
            return cls(
                text,
                f"{first} prefill + {second} decode",
                (f"--prefill={first}", f"--decode={second}"),
                is_apart=True,
            )
        return cls(
            text,
            f"{first} unified, chunks of {second}",
            (f"--unified={first}", f"--max-num-batched-tokens={second}"),
            is_apart=False,
        )


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    model: str


@contextmanager
def serving(shape: Shape, model: str, home: Path, flags: Sequence[str]) -> Iterator[Server]:
    """A server that is ready; gone at the end of the block. Raises RuntimeError when it does not start."""
    process = subprocess.Popen(
        command("serve", model, f"--port={free_port()}", "--json", *shape.flags, *flags),
        env={**os.environ, "ATOMESH_HOME": str(home), "ATOMESH_API_KEYS": ""},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"atomesh serve, {shape.name}, ended with status {process.wait()}")
        ready = json.loads(line)
        yield Server(ready["url"], ready["model"])
    finally:
        process.terminate()
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
