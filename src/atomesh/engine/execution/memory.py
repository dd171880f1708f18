"""How much memory is free for the KV pool."""

from pathlib import Path

import torch

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def free_memory(device: torch.device) -> int:
    """Bytes that can be taken now: of the GPU, or of the machine within the control group's limit."""
    if device.type != "cpu":
        free, _total = torch.cuda.mem_get_info(device)
        return int(free)
    return min(available_memory(MEMINFO), control_group_headroom(CGROUP))


def available_memory(meminfo: Path) -> int:
    """The kernel's estimate of what can be taken without swapping, in bytes."""
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError("the kernel does not say how much memory is available")


def control_group_headroom(root: Path) -> int:
    """What the control group (version 2) still allows, in bytes; page cache counts as free."""
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
        inactive_files = _stat(root / "memory.stat", "inactive_file")
    except (OSError, ValueError):
        return 2**63
    return 2**63 if limit == "max" else max(0, int(limit) - used + inactive_files)


def _stat(path: Path, name: str) -> int:
    fields = (line.split() for line in path.read_text().splitlines())
    return next((int(value) for key, value in fields if key == name), 0)
