import pytest

from atomesh.engine.kernels.instruction_set import AVX2, AVX512, best_instruction_set, processor_flags

CPUINFO = """processor\t: 0
flags\t\t: fma avx2 f16c
vmx flags\t: x

processor\t: 1
flags\t\t: avx2 fma f16c avx512f
"""


def test_flags_are_those_of_every_core() -> None:
    assert processor_flags(CPUINFO) == {"fma", "avx2", "f16c"}


def test_a_processor_without_flags_has_none() -> None:
    assert processor_flags("processor\t: 0\nFeatures\t: fp asimd\n") == frozenset()
    assert processor_flags("") == frozenset()


@pytest.mark.parametrize("lacking", sorted(AVX512.needs - AVX2.needs))
def test_avx512_is_chosen_only_with_all_that_it_needs(lacking: str) -> None:
    assert best_instruction_set(AVX512.needs | {"mmx"}) is AVX512
    assert best_instruction_set(AVX512.needs - {lacking}) is AVX2


@pytest.mark.parametrize("lacking", sorted(AVX2.needs))
def test_without_avx2_there_is_none(lacking: str) -> None:
    assert best_instruction_set(AVX2.needs) is AVX2
    assert best_instruction_set(AVX512.needs - {lacking}) is None
    assert best_instruction_set(frozenset()) is None
