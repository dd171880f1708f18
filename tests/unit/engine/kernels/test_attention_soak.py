"""The attention kernel under the compiler's sanitisers, in both instruction sets."""

import subprocess
from pathlib import Path

import pytest

from atomesh.engine.kernels.compiling import SOURCES, find_compiler
from atomesh.engine.kernels.instruction_set import (
    AVX2,
    AVX512,
    InstructionSet,
    best_instruction_set,
    processor_flags,
)
from atomesh.engine.kernels.library import CPUINFO

DRIVER = Path(__file__).parent / "attention_driver.cpp"
FLAGS = processor_flags(CPUINFO.read_text()) if CPUINFO.exists() else frozenset()


@pytest.mark.soak
@pytest.mark.skipif(find_compiler() is None or best_instruction_set(FLAGS) is None, reason="no kernels here")
@pytest.mark.parametrize("instructions", [AVX512, AVX2], ids=lambda found: found.name)
@pytest.mark.parametrize("watch", ["address,undefined", "thread"])
def test_no_sanitiser_finds_anything(instructions: InstructionSet, watch: str, tmp_path: Path) -> None:
    if not instructions.needs <= FLAGS:
        pytest.skip(f"this processor cannot run {instructions.name}")
    compiler = find_compiler()
    assert compiler is not None
    program = tmp_path / "driver"
    sources = [str(DRIVER), *(str(SOURCES / name) for name in ("paged_attention.cpp", "thread_pool.cpp"))]
    options = [
        "-std=c++17",
        "-O1",
        "-g",
        "-pthread",
        "-ffp-contract=off",
        f"-I{SOURCES}",
        f"-fsanitize={watch}",
    ]
    subprocess.run(
        [
            compiler.path,
            *options,
            "-fno-sanitize-recover=all",
            *instructions.options,
            "-o",
            str(program),
            *sources,
        ],
        check=True,
        capture_output=True,
        timeout=300,
    )
    done = subprocess.run([str(program), "150"], capture_output=True, text=True, check=False, timeout=280)
    assert (done.returncode, done.stdout, done.stderr) == (0, "same\n", "")
