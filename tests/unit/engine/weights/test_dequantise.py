"""Every encoding against an independent reading of its bytes."""

import gguf
import numpy as np
import pytest
import torch

from atomesh.engine.weights.dequantise import check_encoding, dequantise
from atomesh.errors import ModelFileError
from atomesh.model_files.stored_tensor import ENCODINGS

WRITABLE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
K_QUANTS = ("Q4_K", "Q5_K", "Q6_K")


def _values(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((rows, columns)).astype(np.float32)


@pytest.mark.parametrize("name", WRITABLE)
def test_quantised_values_are_those_that_gguf_reads(name):
    kind = gguf.GGMLQuantizationType[name]
    stored = gguf.quantize(_values(48, 256), kind)

    read = dequantise(memoryview(stored.tobytes()), ENCODINGS[name])

    assert read.dtype == torch.float32
    np.testing.assert_array_equal(read.numpy(), gguf.dequantize(stored, kind).reshape(-1))


@pytest.mark.parametrize(
    ("name", "step"), [("Q4_0", 8), ("Q4_1", 15), ("Q5_0", 16), ("Q5_1", 31), ("Q8_0", 127)]
)
def test_quantised_values_are_within_half_a_step_of_the_original(name, step):
    values = _values(16, 256)
    stored = gguf.quantize(values, gguf.GGMLQuantizationType[name])

    read = dequantise(memoryview(stored.tobytes()), ENCODINGS[name]).view(16, 8, 32).numpy()

    blocks = values.reshape(16, 8, 32)
    spread = (
        np.ptp(blocks, axis=-1, keepdims=True) if name.endswith("_1") else abs(blocks).max(-1, keepdims=True)
    )
    # a whole step, where the largest magnitude has the sign that the signed kinds cut off
    assert (abs(read - blocks) <= spread / step * 1.01 + 2e-3).all()


def _scales_and_minima(packed: bytes) -> list[tuple[int, int]]:
    """The eight 6-bit (scale, minimum) pairs of Q4_K and Q5_K, as ggml's get_scale_min_k4 unpacks them."""
    pairs = []
    for j in range(8):
        if j < 4:
            pairs.append((packed[j] & 63, packed[j + 4] & 63))
        else:
            low, high_s, high_m = packed[j + 4], packed[j - 4] >> 6, packed[j] >> 6
            pairs.append(((low & 15) | (high_s << 4), (low >> 4) | (high_m << 4)))
    return pairs


def _q4_k(block: bytes) -> list[float]:
    d, dmin = np.frombuffer(block[:4], np.float16).astype(np.float32)
    scales, quants = _scales_and_minima(block[4:16]), block[16:]
    out = []
    for j in range(8):
        scale, minimum = scales[j]
        for i in range(32):
            nibble = quants[32 * (j // 2) + i] >> (4 * (j % 2)) & 15
            out.append(np.float32(d * scale) * nibble - np.float32(dmin * minimum))
    return out


def _q5_k(block: bytes) -> list[float]:
    d, dmin = np.frombuffer(block[:4], np.float16).astype(np.float32)
    scales, high, quants = _scales_and_minima(block[4:16]), block[16:48], block[48:]
    out = []
    for j in range(8):
        scale, minimum = scales[j]
        for i in range(32):
            value = (quants[32 * (j // 2) + i] >> (4 * (j % 2)) & 15) | (high[i] >> j & 1) << 4
            out.append(np.float32(d * scale) * value - np.float32(dmin * minimum))
    return out


def _q6_k(block: bytes) -> list[float]:
    low, high = block[:128], block[128:192]
    scales = np.frombuffer(block[192:208], np.int8)
    d = np.frombuffer(block[208:], np.float16).astype(np.float32)[0]
    out = []
    for index in range(256):
        half, within = divmod(index, 128)
        quarter, i = divmod(within, 32)
        nibble = low[64 * half + 32 * (quarter % 2) + i] >> (4 * (quarter // 2)) & 15
        value = (nibble | (high[32 * half + i] >> (2 * quarter) & 3) << 4) - 32
        out.append(np.float32(d * scales[index // 16]) * value)
    return out


@pytest.mark.parametrize(("name", "reference"), [("Q4_K", _q4_k), ("Q5_K", _q5_k), ("Q6_K", _q6_k)])
def test_k_quants_follow_ggmls_scalar_definition(name, reference):
    encoding = ENCODINGS[name]
    blocks = np.random.default_rng(3).integers(0, 256, (4, encoding.block_bytes), dtype=np.uint8)
    scale_at = (208, 210) if name == "Q6_K" else (0, 4)
    blocks[:, slice(*scale_at)] = (
        np.array([0.01, 0.02] * 4, np.float16)[: 4 * (scale_at[1] - scale_at[0]) // 2]
        .view(np.uint8)
        .reshape(4, -1)
    )

    read = dequantise(memoryview(blocks.tobytes()), encoding).numpy()

    expected = np.array([value for block in blocks for value in reference(block.tobytes())], np.float32)
    np.testing.assert_allclose(read, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("F64", torch.float64), ("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)],
)
def test_plain_values_keep_their_type_and_bits(name, dtype):
    values = torch.tensor([0.0, -1.5, 3.140625, 65504.0], dtype=dtype)

    read = dequantise(memoryview(values.view(torch.uint8).numpy().tobytes()), ENCODINGS[name])

    assert read.dtype == dtype
    assert torch.equal(read, values)


def test_infinite_scales_of_a_damaged_file_raise_no_warning():
    block = np.full(34, 0x7C, np.uint8)
    block[2:] = 0

    read = dequantise(memoryview(block.tobytes()), ENCODINGS["Q8_0"])

    assert len(read) == 32


@pytest.mark.parametrize("name", ["I64", "U8", "F8_E4M3", "BOOL"])
def test_encodings_without_weights_are_refused(name):
    with pytest.raises(ModelFileError, match=f"'w' has type {name}"):
        check_encoding(ENCODINGS[name], "w")


@pytest.mark.parametrize("name", [*WRITABLE, *K_QUANTS])
def test_block_sizes_are_ggmls(name):
    encoding = ENCODINGS[name]
    assert (encoding.block_elements, encoding.block_bytes) == gguf.GGML_QUANT_SIZES[
        gguf.GGMLQuantizationType[name]
    ]
