"""Which of the kernels' builds this processor can run: pure, from what it says of itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """`needs` are flags as Linux names them in /proc/cpuinfo, `options` what the compiler is told."""

    name: str
    needs: frozenset[str]
    options: tuple[str, ...]


AVX512 = InstructionSet(
    "avx512",
    frozenset(
        {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx2", "fma", "f16c"}
    ),
    (
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx512vnni",
        "-mavx512bf16",
        "-mavx2",
        "-mfma",
        "-mf16c",
    ),
)
AVX2 = InstructionSet("avx2", frozenset({"avx2", "fma", "f16c"}), ("-mavx2", "-mfma", "-mf16c"))
BEST_FIRST = (AVX512, AVX2)


def processor_flags(cpuinfo: str) -> frozenset[str]:
    """What every core of /proc/cpuinfo has; nothing where it names no flags, as on other processors."""
    found = [
        frozenset(value.split())
        for name, _, value in (line.partition(":") for line in cpuinfo.splitlines())
        if name.strip() == "flags"
    ]
    return frozenset.intersection(*found) if found else frozenset()


def best_instruction_set(flags: frozenset[str]) -> InstructionSet | None:
    """The widest that the processor has all of; None: it can run no build."""
    return next((known for known in BEST_FIRST if known.needs <= flags), None)
