from pathlib import Path

import pytest
import torch

from atomesh.engine.execution.memory import available_memory, control_group_headroom, free_memory


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    return folder


def test_reads_the_kernels_estimate(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       16000 kB\nMemFree:   1000 kB\nMemAvailable:    5000 kB\n")
    assert available_memory(meminfo) == 5000 * 1024


def test_an_old_kernel_is_an_error(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       16000 kB\n")
    with pytest.raises(OSError, match="does not say"):
        available_memory(meminfo)


def test_a_limited_control_group(tmp_path: Path) -> None:
    write(tmp_path, memory_max="1000\n", memory_current="700\n", memory_stat="anon 500\ninactive_file 150\n")
    assert control_group_headroom(tmp_path) == 450


def test_a_full_control_group_has_no_room(tmp_path: Path) -> None:
    write(tmp_path, memory_max="1000\n", memory_current="1200\n", memory_stat="anon 500\n")
    assert control_group_headroom(tmp_path) == 0


def test_no_limit(tmp_path: Path) -> None:
    assert control_group_headroom(tmp_path) == 2**63
    write(tmp_path, memory_max="max\n", memory_current="700\n", memory_stat="")
    assert control_group_headroom(tmp_path) == 2**63


def test_this_machine_has_some() -> None:
    assert 0 < free_memory(torch.device("cpu")) < 2**63
