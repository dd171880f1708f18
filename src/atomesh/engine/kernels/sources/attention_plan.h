#pragma once

// Who computes what of one call: pieces of work that threads take in any order.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "attention_tile.h"

namespace atomesh {

constexpr int kTileRows = 96;         // of queries that share a split's transposed keys
constexpr int kMostCutRows = 32;      // beyond it, a piece is never cut along its context
constexpr int kPiecesPerThread = 4;

struct Span {
    int32_t first_row, start, end, first_block;
};

struct Call {
    void* pool;             // the layer's part of block 0: keys [kv_heads][block_size][head_dim], then values
    const void* query;      // [rows][heads][head_dim], rows query_stride elements apart
    const void* key_value;  // [rows][2 · kv_heads][head_dim], rows key_value_stride apart
    void* answer;           // [rows][heads · head_dim]
    const Span* spans;
    const int32_t* blocks;
    int64_t block_stride, query_stride, key_value_stride;  // in elements
    int32_t num_spans, num_heads, num_kv_heads, head_dim, block_size;
    int32_t window;  // 0: none
    int32_t pool_is_bfloat16, query_is_bfloat16;
    int32_t threads;
    float scale, softcap;  // softcap 0: none

    int group() const { return num_heads / num_kv_heads; }
    int first_visible(int position) const { return window == 0 ? 0 : std::max(0, position - window + 1); }
};

// Grows and stays: no allocation in a step that is no larger than one before.
class Scratch {
public:
    float* floats(size_t count) {
        if (count > count_) {
            const size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
            memory_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
            if (!memory_) std::abort();
            count_ = count;
        }
        return memory_.get();
    }

private:
    struct Free {
        void operator()(float* memory) const { std::free(memory); }
    };
    std::unique_ptr<float, Free> memory_;
    size_t count_ = 0;
};

// Some positions of a sequence under one key head: a row for each position and query head of the group.
struct Piece {
    int32_t span, kv_head, position, num_positions;
    int32_t first_split, end_split;
    int64_t partial;  // where the partial results of its splits go, in floats; −1: it answers itself
};

// A row's partial result: answers, highest exponent, sum.
inline int64_t partial_size(const Call& call, const Piece& piece) {
    return static_cast<int64_t>(piece.num_positions) * call.group() * (call.head_dim + 2);
}

// Pieces of about a fair share each: of fewer positions where there is little to do, and where even one position is
// much, cut into the splits of its context, which are put together in their order afterwards.
class Plan {
public:
    std::vector<Piece> pieces, cut;

    void make(const Call& call) {
        pieces.clear();
        cut.clear();
        partial_floats_ = 0;
        int64_t total = 0;
        for (int32_t i = 0; i < call.num_spans; ++i) total += cost(call, call.spans[i]);
        const int64_t fair = std::max<int64_t>(1, total / (kPiecesPerThread * std::max(1, call.threads)));
        for (int32_t i = 0; i < call.num_spans; ++i) divide(call, i, fair);
    }

    float* partials() { return memory_.floats(static_cast<size_t>(partial_floats_)); }

private:
    static int64_t cost(const Call& call, const Span& span) {
        const int64_t rows = span.end - span.start, seen = span.end - call.first_visible(span.start);
        return rows * seen * call.num_heads;
    }

    void divide(const Call& call, int32_t index, int64_t fair) {
        const Span& span = call.spans[index];
        const int64_t rows_of_heads = static_cast<int64_t>(span.end - span.start) * call.num_kv_heads;
        const int64_t of_position = std::max<int64_t>(1, cost(call, span) / rows_of_heads);
        const int64_t most = std::max(1, kTileRows / call.group());
        const int32_t positions = static_cast<int32_t>(std::clamp<int64_t>(fair / of_position, 1, most));
        for (int32_t head = 0; head < call.num_kv_heads; ++head)
            for (int32_t at = span.start; at < span.end; at += positions) {
                const int32_t count = std::min(positions, span.end - at);
                const Piece piece{
                    index, head, at, count, call.first_visible(at) / kSplit, (at + count - 1) / kSplit + 1, -1};
                const bool is_long = of_position * count > fair && piece.end_split - piece.first_split > 1;
                if (is_long && call.threads > 1 && count * call.group() <= kMostCutRows) {
                    cut_into_splits(call, piece);
                } else {
                    pieces.push_back(piece);
                }
            }
    }

    void cut_into_splits(const Call& call, Piece whole) {
        whole.partial = partial_floats_;
        cut.push_back(whole);
        for (int32_t split = whole.first_split; split < whole.end_split; ++split) {
            Piece part = whole;
            part.first_split = split;
            part.end_split = split + 1;
            part.partial = partial_floats_;
            pieces.push_back(part);
            partial_floats_ += partial_size(call, whole);
        }
    }

    int64_t partial_floats_ = 0;
    Scratch memory_;
};

}  // namespace atomesh
