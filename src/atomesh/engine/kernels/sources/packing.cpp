// Rows of weights into the panels of a matrix, and back.

#include <algorithm>
#include <cmath>
#include <cstring>

#include <immintrin.h>

#include "export.h"
#include "matrix.h"
#include "thread_pool.h"

namespace atomesh {
namespace {

float from_half(uint16_t bits) { return _cvtsh_ss(bits); }
uint16_t to_half(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
uint16_t to_bfloat(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
float from_bfloat(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// One output's place in its panel.
class Output {
public:
    Output(const Matrix& matrix, int64_t output)
        : format_(matrix.format),
          lane_(output % kPanel),
          scales_(reinterpret_cast<uint16_t*>(matrix.panel(output / kPanel))),
          codes_(matrix.panel(output / kPanel) + matrix.scale_bytes()) {}

    uint16_t& bfloat(int64_t input) const {
        return reinterpret_cast<uint16_t*>(codes_)[(input / 2 * kPanel + lane_) * 2 + input % 2];
    }
    uint16_t& scale(int64_t group) const { return scales_[group * kPanel * (format_ == kNibbles ? 2 : 1) + lane_]; }
    uint16_t& minimum(int64_t group) const { return scales_[group * kPanel * 2 + kPanel + lane_]; }
    int code(int64_t input) const {
        if (format_ == kBytes) return codes_[byte_at(input)];
        return codes_[nibble_at(input)] >> (input % 8 / 4 * 4) & 15;
    }
    void set_code(int64_t input, int code) const {
        if (format_ == kBytes) {
            codes_[byte_at(input)] = static_cast<uint8_t>(code);
            return;
        }
        const int shift = input % 8 / 4 * 4;
        uint8_t& both = codes_[nibble_at(input)];
        both = static_cast<uint8_t>((both & (0xf0 >> shift)) | code << shift);
    }

private:
    int64_t byte_at(int64_t input) const { return (input / 4 * kPanel + lane_) * 4 + input % 4; }
    int64_t nibble_at(int64_t input) const { return (input / 8 * kPanel + lane_) * 4 + input % 4; }

    int64_t format_, lane_;
    uint16_t* scales_;
    uint8_t* codes_;
};

// Within least … most.
int nearest_code(float value, float scale, int least, int most) {
    if (!(scale > 0)) return 0;
    const float steps = std::nearbyintf(value / scale);
    if (!(steps > static_cast<float>(least))) return least;
    return static_cast<int>(std::min(steps, static_cast<float>(most)));
}

void quantise_bytes(const Output& output, int64_t group, const float* values, int64_t first, int64_t count) {
    float most = 0;
    for (int64_t i = 0; i < count; ++i) most = std::max(most, std::fabs(values[first + i]));
    output.scale(group) = to_half(most / 127);
    const float scale = from_half(output.scale(group));
    for (int64_t i = 0; i < count; ++i)
        output.set_code(first + i, nearest_code(values[first + i], scale, -128, 127) + 128);
}

void quantise_nibbles(const Output& output, int64_t group, const float* values, int64_t first, int64_t count) {
    const auto ends = std::minmax_element(values + first, values + first + count);
    output.scale(group) = to_half((*ends.second - *ends.first) / 15);
    output.minimum(group) = to_half(*ends.first);
    const float scale = from_half(output.scale(group)), minimum = from_half(output.minimum(group));
    for (int64_t i = 0; i < count; ++i)
        output.set_code(first + i, nearest_code(values[first + i] - minimum, scale, 0, 15));
}

void pack_row(const Matrix& matrix, int64_t row, const float* values) {
    const Output output(matrix, row);
    if (matrix.format == kBfloats) {
        for (int64_t i = 0; i < matrix.inputs; ++i) output.bfloat(i) = to_bfloat(values[i]);
        return;
    }
    const auto quantise = matrix.format == kBytes ? quantise_bytes : quantise_nibbles;
    for (int64_t group = 0; group < matrix.groups(); ++group) {
        const int64_t first = group * matrix.group;
        quantise(output, group, values, first, std::min(matrix.group, matrix.inputs - first));
    }
}

enum Blocks : int32_t { kQ4_0 = 0, kQ4_1 = 1, kQ8_0 = 2 };

constexpr int64_t kBlock = 32;
constexpr int64_t kBlockBytes[] = {18, 20, 34};

// llama.cpp's blocks of 32 weights (ggml-common.h): a half scale, for Q4_1 a half minimum, then the codes; of two
// nibbles in a byte, the low one is of the first sixteen weights.
void pack_block(const Output& output, int64_t group, Blocks kind, const uint8_t* block) {
    std::memcpy(&output.scale(group), block, 2);
    const int64_t first = group * kBlock;
    if (kind == kQ8_0) {
        for (int64_t i = 0; i < kBlock; ++i) output.set_code(first + i, static_cast<int8_t>(block[2 + i]) + 128);
        return;
    }
    if (kind == kQ4_1)
        std::memcpy(&output.minimum(group), block + 2, 2);
    else
        output.minimum(group) = to_half(-8 * from_half(output.scale(group)));
    const uint8_t* codes = block + (kind == kQ4_1 ? 4 : 2);
    for (int64_t i = 0; i < kBlock / 2; ++i) {
        output.set_code(first + i, codes[i] & 15);
        output.set_code(first + kBlock / 2 + i, codes[i] >> 4);
    }
}

float weight_at(const Matrix& matrix, const Output& output, int64_t input) {
    if (matrix.format == kBfloats) return from_bfloat(output.bfloat(input));
    const int64_t group = input / matrix.group;
    const float scale = from_half(output.scale(group));
    if (matrix.format == kBytes) return scale * static_cast<float>(output.code(input) - 128);
    return scale * static_cast<float>(output.code(input)) + from_half(output.minimum(group));
}

}  // namespace
}  // namespace atomesh

// Bytes that the panels take, all to be zero before the first row is packed.
ATOMESH_EXPORT int64_t atomesh_matrix_bytes(const atomesh::Matrix* matrix) {
    return matrix->panels() * matrix->panel_bytes();
}

// values [rows, inputs] become the outputs from first_row on, rounded to what the format can say.
ATOMESH_EXPORT void atomesh_pack_floats(
    const atomesh::Matrix* matrix, int64_t first_row, int64_t rows, const float* values, int32_t threads) {
    atomesh::run_in_parallel(threads, rows, [&](int64_t row) {
        atomesh::pack_row(*matrix, first_row + row, values + row * matrix->inputs);
    });
}

// The same from blocks of the same format as they lie in a GGUF file; the group is a block, and inputs are whole ones.
ATOMESH_EXPORT void atomesh_pack_blocks(
    const atomesh::Matrix* matrix, int64_t first_row, int64_t rows, const uint8_t* blocks, int32_t kind,
    int32_t threads) {
    using namespace atomesh;
    const int64_t block_bytes = kBlockBytes[kind], groups = matrix->groups();
    run_in_parallel(threads, rows, [&](int64_t row) {
        const Output output(*matrix, first_row + row);
        const uint8_t* block = blocks + row * groups * block_bytes;
        for (int64_t group = 0; group < groups; ++group, block += block_bytes)
            pack_block(output, group, static_cast<Blocks>(kind), block);
    });
}

// out [count, inputs] of float: the weights of chosen outputs, each in 0 … outputs − 1.
ATOMESH_EXPORT void atomesh_unpack_rows(
    const atomesh::Matrix* matrix, const int64_t* outputs, int64_t count, float* out, int32_t threads) {
    using namespace atomesh;
    run_in_parallel(threads, count, [&](int64_t row) {
        const Output output(*matrix, outputs[row]);
        for (int64_t i = 0; i < matrix->inputs; ++i) out[row * matrix->inputs + i] = weight_at(*matrix, output, i);
    });
}
