#pragma once

// Rows of x made ready for a matrix of some format: floats, or signed bytes with a scale for each group.

#include <cstdint>

#include "matrix.h"

namespace atomesh {

enum Number : int32_t { kFloat = 0, kBfloat = 1 };

struct Rows {
    const void* values;
    int64_t stride;  // in numbers
    int64_t count;
    Number number;
};

// A row is quantised by itself: its bytes are round(x · 127 / max|x|) within each group, and its sums are what the
// codes' zero point is worth. A number that is not finite makes its group's scale NaN.
struct Prepared {
    const float* floats;  // [rows, padded inputs]
    const int8_t* bytes;  // [rows, padded inputs]
    const float* scales;  // [rows, groups]
    const int32_t* sums;  // [rows, groups], of the bytes
};

// Valid until the next call on this thread.
Prepared prepare(const Matrix& matrix, const Rows& rows, int32_t threads);

}  // namespace atomesh
