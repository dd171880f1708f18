"""The C++ kernels, compiled for this processor and loaded: `load_kernels()`, or None where torch must do.

To add a kernel:
1. write `sources/NAME.cpp`; include `lanes.h` for vectors that every instruction set has and `thread_pool.h`
   for `run_in_parallel`; export plain C functions with `ATOMESH_EXPORT`, pointers and integers only;
2. add their arguments to `signatures.py`;
3. put a module beside this one that calls them with `tensor.data_ptr()`, and says the same in torch: that is
   the reference of its test, and what runs where `load_kernels()` is None.

ctypes lets go of the GIL during a call. All `*.cpp` become one object per instruction set, named after a
digest of all sources: a change is compiled at the next start, in some seconds. It lies in `built/` beside
this file where that can be written (a wheel brings its objects there), else in the user's cache.
"""

import ctypes
import logging
from functools import cache
from pathlib import Path

from atomesh.engine.kernels.compiling import compiled_object, existing_object, find_compiler, is_whole
from atomesh.engine.kernels.instruction_set import InstructionSet, best_instruction_set, processor_flags
from atomesh.engine.kernels.signatures import declare
from atomesh.errors import ConfigurationError
from atomesh.thread_policy import SPIN_COUNT

_log = logging.getLogger(__name__)

CPUINFO = Path("/proc/cpuinfo")
BUILT = Path(__file__).parent / "built"
USER_CACHE = Path("~/.cache/atomesh/kernels")


class NoKernels(ConfigurationError):
    """Why the C++ kernels cannot be had here; torch computes instead."""


@cache
def load_kernels() -> ctypes.CDLL | None:
    """The library, its functions declared. None after one line of notice in the log: torch goes on."""
    try:
        return open_kernels(directories())
    except NoKernels as error:
        _log.warning("computing with torch alone, which is slower: %s", error.message)
        return None


def open_kernels(where: tuple[Path, ...]) -> ctypes.CDLL:
    """Found or compiled in the first of the directories that can be written. Raises NoKernels."""
    instructions = _instructions()
    path = _object(instructions, where)
    try:
        if not is_whole(path):
            raise OSError("it is cut short")
        library = declare(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        raise NoKernels(f"the kernels in {path} cannot be loaded ({error}); delete that file") from error
    library.atomesh_set_spin(SPIN_COUNT)
    return library


def directories() -> tuple[Path, ...]:
    try:
        return (BUILT, USER_CACHE.expanduser())
    except RuntimeError:  # a user without a home
        return (BUILT,)


def _instructions() -> InstructionSet:
    flags = processor_flags(CPUINFO.read_text()) if CPUINFO.exists() else frozenset()
    found = best_instruction_set(flags)
    if found is None:
        raise NoKernels("there are no kernels for this processor; they want AVX2 with FMA, or AVX-512")
    return found


def _object(instructions: InstructionSet, where: tuple[Path, ...]) -> Path:
    compiler = find_compiler()
    found = existing_object(instructions, compiler, where)
    if found is not None:
        return found
    if compiler is None:
        raise NoKernels("no C++ compiler is on the search path; install g++ or clang++")
    refusals: list[str] = []
    for directory in where:
        try:
            return compiled_object(instructions, compiler, directory)
        except OSError as error:
            refusals.append(f"{directory}: {error.strerror}")
        except ConfigurationError as error:
            raise NoKernels(error.message) from error
    raise NoKernels(f"the kernels cannot be kept anywhere ({'; '.join(refusals)})")
