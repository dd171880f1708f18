"""With compilers of shell script, which count how often they are called."""

import subprocess
import sys
from pathlib import Path

import pytest

from atomesh.engine.kernels import compiling
from atomesh.engine.kernels.compiling import (
    PACKAGED,
    Compiler,
    compiled_object,
    existing_object,
    find_compiler,
    object_stem,
)
from atomesh.engine.kernels.instruction_set import AVX2, AVX512
from atomesh.errors import ConfigurationError

SUCCEEDING = """
echo "$@" >> "$(dirname "$0")/calls"
sleep 0.2
while [ "$1" != -o ]; do shift; done
echo compiled > "$2"
"""


def write_compiler(directory: Path, script: str = SUCCEEDING) -> Compiler:
    path = directory / "g++"
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)
    return Compiler(str(path), "ours")


def write_sources(directory: Path, text: str = "int x;") -> Path:
    directory.mkdir()
    (directory / "kernel.cpp").write_text(text)
    (directory / "lanes.h").write_text("")
    return directory


def calls(directory: Path) -> list[str]:
    return (directory / "calls").read_text().splitlines()


def test_an_object_is_compiled_once(tmp_path: Path) -> None:
    compiler, sources = write_compiler(tmp_path), write_sources(tmp_path / "sources")

    first = compiled_object(AVX2, compiler, tmp_path / "cache", sources)
    second = compiled_object(AVX2, compiler, tmp_path / "cache", sources)

    assert first == second == tmp_path / "cache" / f"{object_stem(AVX2, sources)}-ours.so"
    assert first.read_text() == "compiled\n"
    (call,) = calls(tmp_path)
    assert call.endswith(f"{sources / 'kernel.cpp'}")
    assert "-mavx2" in call
    assert "-mavx512f" not in call


def test_what_changes_the_object_changes_its_name(tmp_path: Path) -> None:
    sources = write_sources(tmp_path / "sources")
    before = object_stem(AVX2, sources)

    (sources / "lanes.h").write_text("// changed")
    assert object_stem(AVX2, sources) != before
    (sources / "lanes.h").write_text("")
    assert object_stem(AVX2, sources) == before
    (sources / "notes.txt").write_text("not compiled")
    assert object_stem(AVX2, sources) == before
    assert object_stem(AVX512, sources).removeprefix("avx512-") != before.removeprefix("avx2-")


def test_processes_at_once_compile_once(tmp_path: Path) -> None:
    write_compiler(tmp_path)
    write_sources(tmp_path / "sources")
    program = (
        "import sys; from pathlib import Path\n"
        "from atomesh.engine.kernels.compiling import Compiler, compiled_object\n"
        "from atomesh.engine.kernels.instruction_set import AVX2\n"
        "root = Path(sys.argv[1])\n"
        "compiler = Compiler(str(root / 'g++'), 'ours')\n"
        "made = compiled_object(AVX2, compiler, root / 'cache', root / 'sources')\n"
        "assert made.read_text() == 'compiled\\n'\n"
    )

    running = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(3)]

    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(calls(tmp_path)) == 1
    assert not list((tmp_path / "cache").glob("*.tmp"))


def test_a_failure_says_what_the_compiler_said_and_leaves_nothing(tmp_path: Path) -> None:
    script = 'echo "kernel.cpp:3: warning: x" >&2; echo "kernel.cpp:9: error: no such thing" >&2; exit 3'
    compiler, sources = write_compiler(tmp_path, script), write_sources(tmp_path / "sources")

    with pytest.raises(ConfigurationError, match=r"failed \(3\): kernel\.cpp:9: error: no such thing$"):
        compiled_object(AVX2, compiler, tmp_path / "cache", sources)

    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_old_objects_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "KEPT_OBJECTS", 2)
    compiler, sources = write_compiler(tmp_path, SUCCEEDING.replace("sleep", "#")), tmp_path / "sources"
    write_sources(sources)
    made = []
    for version in range(3):
        (sources / "kernel.cpp").write_text(f"int x{version};")
        made.append(compiled_object(AVX2, compiler, tmp_path / "cache", sources))

    assert [path.exists() for path in made] == [False, True, True]


def test_a_wheels_object_goes_first_and_anyones_serves_where_there_is_no_compiler(tmp_path: Path) -> None:
    first, second, compiler = tmp_path / "first", tmp_path / "second", Compiler("/bin/g++", "ours")
    first.mkdir()
    second.mkdir()
    theirs = first / f"{object_stem(AVX2)}-theirs.so"
    theirs.touch()

    assert existing_object(AVX2, compiler, (first, second)) is None
    assert existing_object(AVX2, None, (first, second)) == theirs
    assert existing_object(AVX512, None, (first, second)) is None

    packaged = second / f"{object_stem(AVX2)}-{PACKAGED}.so"
    packaged.touch()
    assert existing_object(AVX2, compiler, (first, second)) == packaged


def test_compilers_are_looked_for_in_order_on_the_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() is None

    write_compiler(tmp_path)
    found = find_compiler(("clang++", "g++"))
    assert found is not None
    assert found.path == str(tmp_path / "g++")
    write_compiler(tmp_path, "exit 0")
    assert find_compiler() != found
