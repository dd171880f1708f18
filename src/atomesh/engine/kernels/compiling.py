"""Turns the C++ of `sources/` into one shared object for an instruction set; needs nothing but Python.

Used by the package's build, so that a wheel carries the objects, and by `library` at first use. An object's
name tells the instruction set, a digest of the sources and options, and the compiler: whatever changes makes
another file, and a file that is there is whole, since it appears by a rename once it is on the disk.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atomesh.engine.kernels.instruction_set import InstructionSet
from atomesh.errors import ConfigurationError

SOURCES = Path(__file__).parent / "sources"
COMPILERS = ("g++", "clang++", "c++")
PACKAGED = "packaged"  # in place of the compiler: what a wheel brought
COMPILE_LIMIT_S = 300
KEPT_OBJECTS = 8
_ELF_HEADER_BYTES = 64
_SECTION_HEADERS = (slice(40, 48), slice(58, 60), slice(60, 62))  # their offset, size and number
# Products are fused where the source says so and nowhere else: results are the same under every compiler.
OPTIONS = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-pthread",
)


@dataclass(frozen=True, slots=True)
class Compiler:
    """`identity` changes when the program does."""

    path: str
    identity: str


def find_compiler(names: Sequence[str] = COMPILERS) -> Compiler | None:
    """The first of `names` on the search path."""
    path = next((found for name in names if (found := shutil.which(name)) is not None), None)
    if path is None:
        return None
    real = os.path.realpath(path)
    stat = os.stat(real)
    return Compiler(path, _digest([real.encode(), str((stat.st_size, stat.st_mtime_ns)).encode()])[:12])


def object_stem(instructions: InstructionSet, sources: Path = SOURCES) -> str:
    """The object's name up to its compiler: instruction set, and digest of all that goes into it."""
    parts = [" ".join((*OPTIONS, *instructions.options)).encode()]
    for source in sorted(sources.iterdir()):
        if source.suffix in (".cpp", ".h"):
            parts += [source.name.encode(), source.read_bytes()]
    return f"{instructions.name}-{_digest(parts)[:16]}"


def compiled_object(
    instructions: InstructionSet, compiler: Compiler, directory: Path, sources: Path = SOURCES
) -> Path:
    """The object in `directory`, compiled if it is not there; of several processes one does it.

    Raises OSError where the directory cannot be written, ConfigurationError with the compiler's words where
    it fails.
    """
    target = directory / f"{object_stem(instructions, sources)}-{compiler.identity}.so"
    if target.exists():
        return target
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(target.with_suffix(".lock")):
        if not target.exists():
            unfinished = target.with_suffix(f".{os.getpid()}.tmp")
            try:
                _compile(instructions, compiler, unfinished, sources)
                _flush(unfinished)
                unfinished.replace(target)
            finally:
                unfinished.unlink(missing_ok=True)
            _forget_oldest(directory)
    return target


def existing_object(
    instructions: InstructionSet, compiler: Compiler | None, directories: Sequence[Path]
) -> Path | None:
    """An object of these very sources: a wheel's, or this compiler's; without a compiler anyone's."""
    stem = object_stem(instructions)
    makers = [PACKAGED, "*" if compiler is None else compiler.identity]
    found = (
        path for maker in makers for directory in directories for path in directory.glob(f"{stem}-{maker}.so")
    )
    return next(found, None)


def is_whole(path: Path) -> bool:
    """Whether it reaches to its last section header: one cut short would end the process that loads it."""
    with path.open("rb") as file:
        header = file.read(_ELF_HEADER_BYTES)
        length = os.fstat(file.fileno()).st_size
    if len(header) < _ELF_HEADER_BYTES:
        return False
    sections, size, count = (int.from_bytes(header[at], "little") for at in _SECTION_HEADERS)
    return 0 < sections + size * count <= length


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _compile(instructions: InstructionSet, compiler: Compiler, target: Path, sources: Path) -> None:
    files = [str(source) for source in sorted(sources.glob("*.cpp"))]
    command = [compiler.path, *OPTIONS, *instructions.options, "-o", str(target), *files]
    try:
        done = subprocess.run(  # noqa: S603  the compiler that the operator has on the search path
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=COMPILE_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"{compiler.path} took longer than {COMPILE_LIMIT_S} s") from None
    if done.returncode:
        words = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
        raise ConfigurationError(f"{compiler.path} failed ({done.returncode}): {words.strip():.300}")


def _forget_oldest(directory: Path) -> None:
    """A process that has one of them loaded keeps it; another that wants it compiles it again."""
    newest_first = sorted(directory.glob("*.so"), key=lambda path: -path.stat().st_mtime_ns)
    for path in newest_first[KEPT_OBJECTS:]:
        path.unlink(missing_ok=True)
        path.with_suffix(".lock").unlink(missing_ok=True)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest(parts: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
