"""How much memory a process and its children hold, as Linux counts it."""

from pathlib import Path

from atomesh.testing.served_process import children_of


def resident_bytes(pid: int) -> dict[int, int]:
    """By process: `pid` and all below it."""
    return {one: _resident(one) for one in (pid, *children_of(pid))}


def _resident(pid: int) -> int:
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return int(fields.get("VmRSS", "0 kB").split()[0]) * 1024
