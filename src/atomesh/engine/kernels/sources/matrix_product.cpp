// y = x Wᵀ + b for packed W and 1 to any number of rows.
//
// One row's sums run over the inputs from first to last, in one accumulator an output (for codes: exact integers
// within a group, then groups from first to last), however many rows there are and whichever thread takes the panel:
// a row's result does not depend on the others.

#include <algorithm>

#include "activations.h"
#include "export.h"
#include "lanes.h"
#include "matrix.h"
#include "thread_pool.h"

namespace atomesh {
namespace {

constexpr int kWide = kPanel / kLanes;  // groups of lanes in a panel
constexpr int64_t kAhead = 4096;        // bytes of the weights that are fetched before they are used
constexpr int64_t kRowsAPass = 240;     // of x, that stay in the second cache while panels go by
#if defined(__AVX512F__)
constexpr int kMostRows = 12;     // 24 of 32 registers accumulate
constexpr int kMostCodeRows = 8;  // each with an integer and a float
#else
constexpr int kMostRows = 3;
constexpr int kMostCodeRows = 2;
#endif

struct Product {
    const Matrix& matrix;
    const Prepared x;
    void* out;
    int64_t out_stride;
    Number out_number;
};

inline void fetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

inline void write(const Product& product, int64_t row, int64_t output, Floats sums) {
    const Matrix& matrix = product.matrix;
    const int64_t count = std::min<int64_t>(kLanes, matrix.outputs - output);
    if (count <= 0) return;
    if (matrix.bias != nullptr) {
        alignas(64) float bias[kLanes] = {};
        std::memcpy(bias, matrix.bias + output, count * sizeof(float));
        sums = add(sums, load_floats(bias));
    }
    alignas(64) uint8_t lanes[kLanes * 4];
    uint8_t* to = static_cast<uint8_t*>(product.out);
    const int64_t size = product.out_number == kFloat ? 4 : 2;
    to += (row * product.out_stride + output) * size;
    uint8_t* place = count == kLanes ? to : lanes;
    if (product.out_number == kFloat)
        store(reinterpret_cast<float*>(place), sums);
    else
        store_bfloats(reinterpret_cast<uint16_t*>(place), sums);
    if (count < kLanes) std::memcpy(to, lanes, count * size);
}

template <int rows>
inline void write_tile(const Product& product, int64_t panel, int64_t first_row, const Floats (&sums)[rows][kWide]) {
    for (int row = 0; row < rows; ++row)
        for (int wide = 0; wide < kWide; ++wide)
            write(product, first_row + row, panel * kPanel + wide * kLanes, sums[row][wide]);
}

// Sums are arrays of the function itself, so that they stay in registers.
template <int rows>
void multiply_bfloats(const Product& product, int64_t panel, int64_t first_row) {
    const int64_t padded = product.matrix.padded_inputs();
    const uint8_t* weights = product.matrix.panel(panel);
    const float* x = product.x.floats + first_row * padded;
    Floats sums[rows][kWide];
    for (auto& row : sums)
        for (Floats& sum : row) sum = zero_floats();
    for (int64_t i = 0; i < padded; i += 2, weights += kPanel * 4) {
        fetch(weights + kAhead);
        fetch(weights + kAhead + kLaneBytes);
        const Ints left = load_ints(weights), right = load_ints(weights + kLaneBytes);
        const Floats left_first = first_bfloats(left), right_first = first_bfloats(right);
        for (int row = 0; row < rows; ++row) {
            const Floats first = splat(x[row * padded + i]);
            sums[row][0] = mul_add(left_first, first, sums[row][0]);
            sums[row][1] = mul_add(right_first, first, sums[row][1]);
        }
        const Floats left_second = second_bfloats(left), right_second = second_bfloats(right);
        for (int row = 0; row < rows; ++row) {
            const Floats second = splat(x[row * padded + i + 1]);
            sums[row][0] = mul_add(left_second, second, sums[row][0]);
            sums[row][1] = mul_add(right_second, second, sums[row][1]);
        }
    }
    write_tile<rows>(product, panel, first_row, sums);
}

template <int rows>
inline __attribute__((always_inline)) void add_quads(
    Ints (&sums)[rows][kWide], Ints left, Ints right, const int8_t* x, int64_t stride) {
    for (int row = 0; row < rows; ++row) {
        const Ints quad = splat_bits(x + row * stride);
        sums[row][0] = dot_quads(sums[row][0], left, quad);
        sums[row][1] = dot_quads(sums[row][1], right, quad);
    }
}

struct CodeOperands {
    int64_t groups, size, padded;
    const uint16_t* scales;
    const uint8_t* codes;
    const int8_t* x;
    const float* x_scales;
    const int32_t* x_sums;
};

inline CodeOperands code_operands(const Product& product, int64_t panel, int64_t first_row) {
    const Matrix& matrix = product.matrix;
    const int64_t groups = matrix.groups(), padded = matrix.padded_inputs();
    const uint8_t* scales = matrix.panel(panel);
    return {
        groups,
        matrix.group,
        padded,
        reinterpret_cast<const uint16_t*>(scales),
        scales + matrix.scale_bytes(),
        product.x.bytes + first_row * padded,
        product.x.scales + first_row * groups,
        product.x.sums + first_row * groups,
    };
}

template <int rows>
void multiply_bytes(const Product& product, int64_t panel, int64_t first_row) {
    auto [groups, size, padded, scales, codes, x, x_scales, x_sums] = code_operands(product, panel, first_row);
    Floats sums[rows][kWide];
    for (auto& row : sums)
        for (Floats& sum : row) sum = zero_floats();
    for (int64_t group = 0; group < groups; ++group, scales += kPanel, x += size) {
        Ints quads[rows][kWide];
        for (int row = 0; row < rows; ++row)
            quads[row][0] = quads[row][1] = splat(-128 * x_sums[row * groups + group]);
        for (int64_t i = 0; i < size; i += 4, codes += kPanel * 4) {
            fetch(codes + kAhead);
            fetch(codes + kAhead + kLaneBytes);
            add_quads<rows>(quads, load_ints(codes), load_ints(codes + kLaneBytes), x + i, padded);
        }
        const Floats left = load_halves(scales), right = load_halves(scales + kLanes);
        for (int row = 0; row < rows; ++row) {
            const Floats x_scale = splat(x_scales[row * groups + group]);
            sums[row][0] = mul_add(to_floats(quads[row][0]), mul(left, x_scale), sums[row][0]);
            sums[row][1] = mul_add(to_floats(quads[row][1]), mul(right, x_scale), sums[row][1]);
        }
    }
    write_tile<rows>(product, panel, first_row, sums);
}

template <int rows>
void multiply_nibbles(const Product& product, int64_t panel, int64_t first_row) {
    auto [groups, size, padded, scales, codes, x, x_scales, x_sums] = code_operands(product, panel, first_row);
    const Ints low = splat_byte(15);
    Floats sums[rows][kWide];
    for (auto& row : sums)
        for (Floats& sum : row) sum = zero_floats();
    for (int64_t group = 0; group < groups; ++group, scales += 2 * kPanel, x += size) {
        Ints quads[rows][kWide];
        for (auto& row : quads)
            for (Ints& quad : row) quad = zero_ints();
        for (int64_t i = 0; i < size; i += 8, codes += kPanel * 4) {
            fetch(codes + kAhead);
            fetch(codes + kAhead + kLaneBytes);
            const Ints left = load_ints(codes), right = load_ints(codes + kLaneBytes);
            add_quads<rows>(quads, bit_and(left, low), bit_and(right, low), x + i, padded);
            add_quads<rows>(quads, high_nibbles(left), high_nibbles(right), x + i + 4, padded);
        }
        for (int wide = 0; wide < kWide; ++wide) {
            const Floats scale = load_halves(scales + wide * kLanes);
            const Floats minimum = load_halves(scales + kPanel + wide * kLanes);
            for (int row = 0; row < rows; ++row) {
                const int64_t at = row * groups + group;
                const Floats x_scale = splat(x_scales[at]);
                const Floats x_total = splat(x_scales[at] * static_cast<float>(x_sums[at]));
                sums[row][wide] = mul_add(to_floats(quads[row][wide]), mul(scale, x_scale), sums[row][wide]);
                sums[row][wide] = mul_add(minimum, x_total, sums[row][wide]);
            }
        }
    }
    write_tile<rows>(product, panel, first_row, sums);
}

template <int rows>
void multiply(const Product& product, int64_t panel, int64_t first_row) {
    switch (product.matrix.format) {
        case kBfloats: return multiply_bfloats<rows>(product, panel, first_row);
        case kBytes: return multiply_bytes<std::min(rows, kMostCodeRows)>(product, panel, first_row);
        default: return multiply_nibbles<std::min(rows, kMostCodeRows)>(product, panel, first_row);
    }
}

template <int rows>
void multiply_rows(const Product& product, int64_t panel, int64_t first_row, int64_t count) {
    if constexpr (rows > 1) {
        if (count < rows) return multiply_rows<rows - 1>(product, panel, first_row, count);
    }
    multiply<rows>(product, panel, first_row);
}

void multiply_panel(const Product& product, int64_t panel, int64_t first_row, int64_t stop) {
    const int64_t most = product.matrix.format == kBfloats ? kMostRows : kMostCodeRows;
    for (int64_t row = first_row; row < stop; row += most)
        multiply_rows<kMostRows>(product, panel, row, std::min(most, stop - row));
}

}  // namespace
}  // namespace atomesh

// x [rows, inputs] with `x_stride` numbers from row to row, y [rows, outputs] likewise; kinds as in `Number`.
ATOMESH_EXPORT void atomesh_multiply(
    const atomesh::Matrix* matrix, const void* x, int32_t x_number, int64_t x_stride, void* y, int32_t y_number,
    int64_t y_stride, int64_t rows, int32_t threads) {
    using namespace atomesh;
    const Prepared prepared = prepare(*matrix, {x, x_stride, rows, static_cast<Number>(x_number)}, threads);
    const Product product{*matrix, prepared, y, y_stride, static_cast<Number>(y_number)};
    const int64_t panels = matrix->panels(), passes = (rows + kRowsAPass - 1) / kRowsAPass;
    run_in_parallel(threads, panels * passes, [&](int64_t piece) {
        const int64_t first_row = piece / panels * kRowsAPass;
        multiply_panel(product, piece % panels, first_row, std::min(rows, first_row + kRowsAPass));
    });
}
