"""The C++ product beside the same in torch, over odd shapes; a row the same whatever lies beside it."""

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atomesh.engine.kernels.library import load_kernels
from atomesh.engine.kernels.matrix_reference import quantised_product, quantised_weights
from atomesh.engine.kernels.packed_matrix import MatrixShape, PackedMatrix, WeightFormat, as_block_encoding
from atomesh.errors import ConfigurationError

KERNELS = load_kernels()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="no compiler, or no such processor")
FORMATS: tuple[tuple[WeightFormat, int], ...] = (
    ("bfloat16", 32),
    ("int8", 8),
    ("int8", 64),
    ("int8", 576),
    ("int4", 32),
    ("int4", 8),
)


def packed(shape: MatrixShape, weights: torch.Tensor, threads: int = 2) -> PackedMatrix:
    assert KERNELS is not None
    matrix = PackedMatrix(KERNELS, shape, threads)
    matrix.pack(0, weights)
    return matrix


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def all_rows(matrix: PackedMatrix) -> torch.Tensor:
    return matrix.rows(torch.arange(matrix.shape.outputs))


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(FORMATS),
    outputs=st.integers(1, 70),
    inputs=st.integers(1, 200),
    rows=st.integers(1, 30),
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
    seed=st.integers(0, 2**31),
)
def test_any_shape_gives_what_torch_gives(
    kind: tuple[WeightFormat, int], outputs: int, inputs: int, rows: int, dtype: torch.dtype, seed: int
) -> None:
    shape = MatrixShape(outputs, inputs, *kind)
    weights, x = randn(outputs, inputs, seed=seed), randn(rows, inputs, seed=seed + 1).to(dtype)
    matrix = packed(shape, weights)

    expected = quantised_weights(weights, shape)
    assert torch.allclose(all_rows(matrix), expected, rtol=1e-6, atol=1e-7)
    reference = quantised_product(x, expected, shape)
    error = (matrix.multiply(x, torch.float32) - reference).abs()
    assert error.max() <= 1e-5 * (1 + inputs**0.5)


@pytest.mark.parametrize(("form", "group"), [("int8", 64), ("int4", 32)])
def test_codes_are_the_nearest_of_a_great_many(form: WeightFormat, group: int) -> None:
    shape = MatrixShape(400, 2048, form, group)
    weights = randn(400, 2048, seed=1)

    assert torch.allclose(all_rows(packed(shape, weights)), quantised_weights(weights, shape), atol=1e-5)


@pytest.mark.parametrize(("form", "group"), FORMATS)
def test_a_row_is_the_same_alone_and_beside_others_on_one_thread_and_two(
    form: WeightFormat, group: int
) -> None:
    shape = MatrixShape(100, 576, form, group)
    weights, x = randn(100, 576), randn(64, 576, seed=1)
    one, two = packed(shape, weights, threads=1), packed(shape, weights, threads=2)
    together = two.multiply(x, torch.float32)

    for row in range(64):
        assert torch.equal(one.multiply(x[row : row + 1], torch.float32)[0], together[row])
    for rows in (2, 3, 5, 7, 12, 13, 31, 64):
        assert torch.equal(one.multiply(x[:rows], torch.float32), together[:rows])
        assert torch.equal(two.multiply(x[64 - rows :], torch.float32), together[64 - rows :])


@pytest.mark.parametrize(("form", "group"), FORMATS)
def test_many_rows_pass_in_turns(form: WeightFormat, group: int) -> None:
    matrix = packed(MatrixShape(40, 64, form, group), randn(40, 64))
    x = randn(513, 64, seed=1)

    whole = matrix.multiply(x, torch.float32)

    assert torch.equal(whole[500:], matrix.multiply(x[500:], torch.float32))
    assert torch.equal(whole[238:243], matrix.multiply(x[238:243], torch.float32))


def test_inputs_may_be_a_part_of_wider_rows() -> None:
    matrix = packed(MatrixShape(5, 48, "int8", 16), randn(5, 48))
    wide = randn(9, 100, seed=1)

    found = matrix.multiply(wide[:, 7:55], torch.float32)

    assert torch.equal(found, matrix.multiply(wide[:, 7:55].contiguous(), torch.float32))


def test_bfloat16_out_is_the_float_result_rounded_to_the_nearest() -> None:
    matrix = packed(MatrixShape(45, 64, "bfloat16"), randn(45, 64))
    x = randn(6, 64, seed=1)

    assert torch.equal(matrix.multiply(x, torch.bfloat16), matrix.multiply(x, torch.float32).bfloat16())


def test_the_bias_is_added_to_each_row() -> None:
    assert KERNELS is not None
    bias = randn(45, seed=2)
    shape = MatrixShape(45, 64, "bfloat16")
    matrix = PackedMatrix(KERNELS, shape, 2, bias)
    matrix.pack(0, randn(45, 64))
    x = randn(3, 64, seed=1)

    plain = packed(shape, randn(45, 64)).multiply(x, torch.float32)

    assert torch.equal(matrix.multiply(x, torch.float32), plain + bias)


@pytest.mark.parametrize(("form", "group"), FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_so_and_in_its_row(form: WeightFormat, group: int, bad: float) -> None:
    matrix = packed(MatrixShape(33, 96, form, group), randn(33, 96))
    x = randn(3, 96, seed=1)
    good = matrix.multiply(x, torch.float32)
    x[1, 40] = bad

    found = matrix.multiply(x, torch.float32)

    assert not found[1].isfinite().any()
    assert torch.equal(found[[0, 2]], good[[0, 2]])


@pytest.mark.parametrize(("form", "group"), FORMATS)
def test_zeros_give_zeros(form: WeightFormat, group: int) -> None:
    matrix = packed(MatrixShape(33, 96, form, group), torch.zeros(33, 96))

    assert not all_rows(matrix).any()
    assert not matrix.multiply(randn(2, 96), torch.float32).any()
    assert not packed(matrix.shape, randn(33, 96)).multiply(torch.zeros(2, 96), torch.float32).any()


@pytest.mark.parametrize(("encoding", "form"), [("Q4_0", "int4"), ("Q4_1", "int4"), ("Q8_0", "int8")])
def test_a_files_blocks_are_kept_to_the_bit(encoding: str, form: WeightFormat) -> None:
    assert KERNELS is not None
    kind = gguf.GGMLQuantizationType[encoding]
    raw = gguf.quantize(randn(37, 96).numpy(), kind)
    expected = torch.from_numpy(np.asarray(gguf.dequantize(raw, kind)))
    shape = MatrixShape(37, 96, form, 32)
    matrix = PackedMatrix(KERNELS, shape, 2)
    blocks = as_block_encoding(shape, encoding)
    assert blocks is not None

    matrix.pack_blocks(0, torch.from_numpy(raw[:20]), blocks)
    matrix.pack_blocks(20, torch.from_numpy(raw[20:]), blocks)

    assert torch.allclose(all_rows(matrix), expected, rtol=1e-6, atol=1e-7)


def test_blocks_go_only_where_their_codes_are_kept() -> None:
    assert as_block_encoding(MatrixShape(8, 64, "int4", 32), "Q8_0") is None
    assert as_block_encoding(MatrixShape(8, 64, "int8", 64), "Q8_0") is None
    assert as_block_encoding(MatrixShape(8, 64, "bfloat16"), "BF16") is None
    assert as_block_encoding(MatrixShape(8, 48, "int4", 32), "Q4_0") is None


def test_shapes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="0 × 4 holds no weights"):
        MatrixShape(0, 4, "int8")
    with pytest.raises(ConfigurationError, match="group is 12 inputs; it must be a multiple of 8"):
        MatrixShape(4, 4, "int8", 12)
    matrix = packed(MatrixShape(4, 8, "int8"), randn(4, 8))
    with pytest.raises(ConfigurationError, match="rows 3 to 5 do not lie within the 4"):
        matrix.pack(3, randn(2, 8))
    with pytest.raises(ConfigurationError, match="rows of 9 weights; the matrix has 8"):
        matrix.pack(0, randn(2, 9))
