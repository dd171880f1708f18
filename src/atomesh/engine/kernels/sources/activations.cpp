#include "activations.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "lanes.h"
#include "thread_pool.h"

namespace atomesh {
namespace {

constexpr int64_t kRowsAPiece = 8;

// Grows and never shrinks: a step in its stride allocates nothing.
class Scratch {
public:
    ~Scratch() { std::free(data_); }
    uint8_t* take(int64_t bytes) {
        if (bytes > size_) {
            std::free(data_);
            size_ = (bytes + 4095) / 4096 * 4096;
            data_ = static_cast<uint8_t*>(std::aligned_alloc(64, size_));
            if (data_ == nullptr) throw std::bad_alloc();
        }
        return data_;
    }

private:
    uint8_t* data_ = nullptr;
    int64_t size_ = 0;
};

thread_local Scratch scratch;

template <Number number>
Floats load_sixteen(const void* row, int64_t at) {
    if constexpr (number == kFloat) return load_floats(static_cast<const float*>(row) + at);
    return to_floats_from_bfloats(static_cast<const uint16_t*>(row) + at);
}

// Numbers at … at + 15, zeros from `end` on.
template <Number number>
Floats load_up_to(const void* row, int64_t at, int64_t end) {
    if (at + kLanes <= end) return load_sixteen<number>(row, at);
    constexpr int64_t size = number == kFloat ? 4 : 2;
    alignas(64) uint8_t tail[kLanes * 4] = {};
    if (at < end) std::memcpy(tail, static_cast<const uint8_t*>(row) + at * size, (end - at) * size);
    return load_sixteen<number>(tail, 0);
}

float largest(Floats x) {
    alignas(64) float lanes[kLanes];
    store(lanes, x);
    float found = 0;
    for (float lane : lanes) found = std::max(found, lane);
    return found;
}

float total(Floats x) {
    alignas(64) float lanes[kLanes];
    store(lanes, x);
    float sum = 0;
    for (float lane : lanes) sum += lane;
    return sum;
}

int32_t sum_of(const int8_t* bytes, int64_t count) {
    int32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += bytes[i];
    return sum;
}

template <Number number>
void to_float_row(const void* row, int64_t inputs, int64_t padded, float* out) {
    for (int64_t at = 0; at < padded; at += kLanes) {
        alignas(64) float part[kLanes];
        store(part, load_up_to<number>(row, at, inputs));
        std::memcpy(out + at, part, std::min<int64_t>(kLanes, padded - at) * sizeof(float));
    }
}

// Inputs first … first + count − 1 of a row whose inputs end at `end`.
template <Number number>
void quantise_group(const void* row, int64_t first, int64_t count, int64_t end, int8_t* out, float* scale) {
    Floats magnitude = zero_floats(), poison = zero_floats();
    const int64_t stop = std::min(end, first + count);
    for (int64_t at = first; at < stop; at += kLanes) {
        const Floats x = load_up_to<number>(row, at, stop);
        magnitude = max_magnitude(magnitude, x);
        poison = mul_add(x, zero_floats(), poison);
    }
    const float most = largest(magnitude);
    const Floats factor = splat(most > 0 ? 127.0f / most : 0.0f);
    for (int64_t at = first; at < first + count; at += kLanes) {
        int8_t part[kLanes];
        store_bytes(part, mul(load_up_to<number>(row, at, stop), factor));
        std::memcpy(out + at, part, std::min<int64_t>(kLanes, first + count - at));
    }
    *scale = most / 127.0f + total(poison);
}

template <Number number>
void quantise_row(const Matrix& matrix, const void* row, int8_t* bytes, float* scales, int32_t* sums) {
    for (int64_t group = 0; group < matrix.groups(); ++group) {
        const int64_t first = group * matrix.group;
        quantise_group<number>(row, first, matrix.group, matrix.inputs, bytes, scales + group);
        sums[group] = sum_of(bytes + first, matrix.group);
    }
}

template <typename Work>
void for_each_row(int64_t rows, int32_t threads, Work&& work) {
    const int64_t pieces = (rows + kRowsAPiece - 1) / kRowsAPiece;
    run_in_parallel(threads, pieces, [&](int64_t piece) {
        const int64_t stop = std::min(rows, (piece + 1) * kRowsAPiece);
        for (int64_t row = piece * kRowsAPiece; row < stop; ++row) work(row);
    });
}

template <Number number>
Prepared prepare_as(const Matrix& matrix, const Rows& rows, int32_t threads) {
    const int64_t padded = matrix.padded_inputs(), groups = matrix.groups();
    constexpr int64_t size = number == kFloat ? 4 : 2;
    const auto row_at = [&](int64_t row) { return static_cast<const uint8_t*>(rows.values) + row * rows.stride * size; };
    if (matrix.format == kBfloats) {
        float* floats = reinterpret_cast<float*>(scratch.take(rows.count * padded * 4));
        for_each_row(rows.count, threads, [&](int64_t row) {
            to_float_row<number>(row_at(row), matrix.inputs, padded, floats + row * padded);
        });
        return {floats, nullptr, nullptr, nullptr};
    }
    float* scales = reinterpret_cast<float*>(scratch.take(rows.count * (padded + groups * 8)));
    int32_t* sums = reinterpret_cast<int32_t*>(scales + rows.count * groups);
    int8_t* bytes = reinterpret_cast<int8_t*>(sums + rows.count * groups);
    for_each_row(rows.count, threads, [&](int64_t row) {
        quantise_row<number>(matrix, row_at(row), bytes + row * padded, scales + row * groups, sums + row * groups);
    });
    return {nullptr, bytes, scales, sums};
}

}  // namespace

Prepared prepare(const Matrix& matrix, const Rows& rows, int32_t threads) {
    const bool is_ready = matrix.format == kBfloats && rows.number == kFloat &&
                          matrix.inputs % 2 == 0 && rows.stride == matrix.inputs;
    if (is_ready) return {static_cast<const float*>(rows.values), nullptr, nullptr, nullptr};
    return rows.number == kFloat ? prepare_as<kFloat>(matrix, rows, threads)
                                 : prepare_as<kBfloat>(matrix, rows, threads);
}

}  // namespace atomesh
