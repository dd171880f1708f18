import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from atomesh.engine.kernels import library
from atomesh.engine.kernels.compiling import PACKAGED, existing_object, find_compiler, object_stem
from atomesh.engine.kernels.instruction_set import best_instruction_set, processor_flags
from atomesh.engine.kernels.library import NoKernels, load_kernels, open_kernels

needs_kernels = pytest.mark.skipif(load_kernels() is None, reason="no compiler, or no such processor")


def pool_sum(values: np.ndarray, threads: int) -> int:
    kernels = load_kernels()
    assert kernels is not None
    return int(kernels.atomesh_sum_in_parallel(values.ctypes.data, values.size, threads))


@needs_kernels
@pytest.mark.parametrize("threads", [0, 1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 100_003])
def test_every_piece_is_done_once(count: int, threads: int) -> None:
    values = np.arange(count, dtype=np.int64)

    assert pool_sum(values, threads) == count * (count - 1) // 2


@needs_kernels
def test_callers_of_several_threads_take_turns() -> None:
    values = np.ones(5_000, dtype=np.int64)
    found: list[int] = []

    def call() -> None:
        found.extend(pool_sum(values, 3) for _ in range(300))

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()

    assert found == [5_000] * 900


@needs_kernels
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    values = np.ones(5_000, dtype=np.int64)
    pool_sum(values, 2)
    child = os.fork()
    if child == 0:
        os._exit(0 if pool_sum(values, 2) == 5_000 else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_processor_without_kernels_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "CPUINFO", tmp_path / "absent")
    load_kernels.cache_clear()
    with caplog.at_level(logging.WARNING):
        found = [load_kernels(), load_kernels()]
    load_kernels.cache_clear()

    assert found == [None, None]
    assert [record.getMessage() for record in caplog.records] == [
        "computing with torch alone, which is slower: there are no kernels for this processor; they want "
        "AVX2 with FMA, or AVX-512"
    ]


@needs_kernels
def test_without_a_compiler_there_is_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NoKernels, match=r"^no C\+\+ compiler is on the search path; install g\+\+ or clang"):
        open_kernels((tmp_path,))


@needs_kernels
def test_a_directory_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()

    with pytest.raises(NoKernels, match=r"cannot be kept anywhere \(.*file: (Not a directory|File exists)\)"):
        open_kernels((blocked,))
    open_kernels((blocked, tmp_path / "cache"))

    assert len(list((tmp_path / "cache").glob("*.so"))) == 1


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "USER_CACHE", Path("~no-such-user/kernels"))

    assert library.directories() == (library.BUILT,)


@needs_kernels
@pytest.mark.parametrize("damage", ["empty", "half", "end", "other"])
def test_a_damaged_object_is_named(damage: str, tmp_path: Path) -> None:
    instructions = best_instruction_set(processor_flags(library.CPUINFO.read_text()))
    assert instructions is not None
    whole = existing_object(instructions, find_compiler(), library.directories())
    assert whole is not None
    data = whole.read_bytes()
    damaged = {"empty": b"", "half": data[: len(data) // 2], "end": data[:-1], "other": bytes(len(data))}
    (tmp_path / f"{object_stem(instructions)}-{PACKAGED}.so").write_bytes(damaged[damage])

    with pytest.raises(NoKernels, match=r"cannot be loaded \(.*\); delete that file$"):
        open_kernels((tmp_path,))
