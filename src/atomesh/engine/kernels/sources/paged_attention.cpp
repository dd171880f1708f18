// Attention of a mixed batch over a paged pool. A piece of work is some positions of one sequence under one key head,
// whose query heads share every key and value. A split's keys are transposed once for all rows of the piece.

#include "attention_plan.h"
#include "attention_transpose.h"
#include "export.h"
#include "thread_pool.h"

namespace atomesh {
namespace {

struct Range {
    int first, last;
    bool is_empty() const { return first >= last; }
};

// Of one thread, for one piece: `keys` transposed, `values` widened if many rows share them.
struct Workspace {
    float *query, *keys, *values, *scores, *answers;
    std::vector<Gathered>& gathered;
};

Workspace workspace(int rows, int dim) {
    static thread_local Scratch scratch;
    static thread_local std::vector<Gathered> gathered;
    const size_t of_rows = static_cast<size_t>(rows) * dim, of_scores = kRows * kScoreStride;
    const size_t of_keys = static_cast<size_t>(kScoreStride) * dim, of_values = static_cast<size_t>(kSplit) * dim;
    float* query = scratch.floats(2 * of_rows + of_keys + of_values + of_scores);
    float* keys = query + of_rows;
    float* values = keys + of_keys;
    float* scores = values + of_values;
    float* answers = scores + of_scores;
    std::fill_n(answers, of_rows, 0.0f);
    gathered.assign(static_cast<size_t>(rows), Gathered{});
    return {query, keys, values, scores, answers, gathered};
}

// A split's tiles for many rows: keys transposed and values widened, once for all.
struct ReadyTiles {
    int dim;
    const float* keys;
    const float* values[kSplitTiles];

    const float* keys_from(int tile) const { return keys + tile * kTileTokens * dim; }
};

// A split's tiles for few rows, as they lie in the pool, and the first of the next: keys are transposed as they are
// used, while those of kWide tiles further are fetched, and the values that the weights will want.
template <typename T>
struct PoolTiles {
    int dim;
    float* memory;
    int end;
    const T* keys[kSplitTiles + kWide];
    const T* values[kSplitTiles + kWide];

    const float* keys_from(int first) const {
        for (int w = 0; w < kWide && first + w < end; ++w) {
            const int tile = first + w;
            if (tile + kWide < end) fetch<3>(keys[tile + kWide]);
            fetch<2>(values[tile]);
            transpose_keys(keys[tile], dim, memory + w * kTileTokens * dim);
        }
        return memory;
    }

    template <int Locality>
    void fetch(const T* tile) const {
        const char* bytes = reinterpret_cast<const char*>(tile);
        const int size = kTileTokens * dim * static_cast<int>(sizeof(T));
        for (int at = 0; at < size; at += 64) __builtin_prefetch(bytes + at, 0, Locality);
    }
};

Scoring scoring_of(const Call& call) {
    constexpr double log2_e = 1.4426950408889634;
    if (call.softcap == 0.0f) return {static_cast<float>(call.scale * log2_e), 0.0f, 0.0f};
    return {static_cast<float>(2.0 * log2_e * call.scale / call.softcap), call.softcap,
            static_cast<float>(call.softcap * log2_e)};
}

// T is the pool's number, Q the batch's.
template <typename T, typename Q>
class Step {
public:
    explicit Step(const Call& call)
        : call_(call), dim_(call.head_dim), group_(call.group()), scoring_(scoring_of(call)) {}

    void run() const {
        static thread_local Plan of_thread;
        Plan& plan = of_thread;  // the caller's: the helpers' threads have their own
        plan.make(call_);
        float* partials = plan.partials();
        write_new_rows();
        run_in_parallel(call_.threads, static_cast<int64_t>(plan.pieces.size()),
                        [&](int64_t i) { attend(plan.pieces[i], partials); });
        run_in_parallel(call_.threads, static_cast<int64_t>(plan.cut.size()),
                        [&](int64_t i) { put_together(plan.cut[i], partials); });
    }

private:
    // ---- the pool ----

    T* keys_at(const Span& span, int kv_head, int position) const {
        const int64_t block = call_.blocks[span.first_block + position / call_.block_size];
        const int64_t row = static_cast<int64_t>(kv_head) * call_.block_size + position % call_.block_size;
        return static_cast<T*>(call_.pool) + block * call_.block_stride + row * dim_;
    }

    int64_t from_keys_to_values() const { return static_cast<int64_t>(call_.num_kv_heads) * call_.block_size * dim_; }

    void write_new_rows() const {
        constexpr int kRowsAtOnce = 64;
        int32_t rows = 0;
        for (int32_t i = 0; i < call_.num_spans; ++i) rows += call_.spans[i].end - call_.spans[i].start;
        run_in_parallel(call_.threads, (rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](int64_t part) {
            const int32_t from = static_cast<int32_t>(part) * kRowsAtOnce;
            write_rows(from, std::min(from + kRowsAtOnce, rows));
        });
    }

    // Of all spans' rows in their order, those from … to − 1.
    void write_rows(int32_t from, int32_t to) const {
        int32_t before = 0;
        for (int32_t i = 0; i < call_.num_spans && before < to; ++i) {
            const Span& span = call_.spans[i];
            const int32_t count = span.end - span.start;
            const int32_t end = std::min(to - before, count);
            for (int32_t row = std::max(from - before, 0); row < end; ++row) write_row(span, row);
            before += count;
        }
    }

    void write_row(const Span& span, int32_t row) const {
        const Q* key = static_cast<const Q*>(call_.key_value) + (span.first_row + row) * call_.key_value_stride;
        const Q* value = key + call_.num_kv_heads * dim_;
        for (int head = 0; head < call_.num_kv_heads; ++head) {
            T* kept = keys_at(span, head, span.start + row);
            for (int d = 0; d < dim_; d += kLanes) {
                store_narrow(kept + d, load_wide(key + head * dim_ + d));
                store_narrow(kept + from_keys_to_values() + d, load_wide(value + head * dim_ + d));
            }
        }
    }

    // ---- one piece ----

    void attend(const Piece& piece, float* partials) const {
        const int rows = piece.num_positions * group_;
        const Workspace space = workspace(rows, dim_);
        for (int i = 0; i < piece.num_positions; ++i) widen_query(piece, i, space.query + i * group_ * dim_);
        for (int32_t split = piece.first_split; split < piece.end_split; ++split) attend_split(piece, split, space);
        if (piece.partial < 0) {
            answer(piece, space);
        } else {
            keep_partial(space, rows, partials + piece.partial);
        }
    }

    int64_t batch_row(const Piece& piece, int index) const {
        const Span& span = call_.spans[piece.span];
        return span.first_row + piece.position - span.start + index;
    }

    void widen_query(const Piece& piece, int index, float* wide) const {
        const Q* query = static_cast<const Q*>(call_.query) + batch_row(piece, index) * call_.query_stride +
                         static_cast<int64_t>(piece.kv_head) * group_ * dim_;
        for (int d = 0; d < group_ * dim_; d += kLanes) store(wide + d, load_wide(query + d));
    }

    // What positions index … index + count − 1 of the piece see of a split, counted from the split's start.
    Range seen_in(const Piece& piece, int index, int count, int32_t split) const {
        const int from = split * kSplit, position = piece.position + index;
        return {std::max(call_.first_visible(position) - from, 0), std::min(position + count - from, kSplit)};
    }

    void attend_split(const Piece& piece, int32_t split, const Workspace& space) const {
        if (piece.num_positions * group_ <= kRows) {
            attend_rows(piece, split, space, in_the_pool(piece, split, space));
        } else {
            attend_rows(piece, split, space, made_ready(piece, split, space));
        }
    }

    // Tiles of the split that the piece sees.
    Range tiles_of(const Piece& piece, int32_t split) const {
        const Range seen = seen_in(piece, 0, piece.num_positions, split);
        return {seen.first / kTileTokens, (seen.last + kTileTokens - 1) / kTileTokens};
    }

    PoolTiles<T> in_the_pool(const Piece& piece, int32_t split, const Workspace& space) const {
        PoolTiles<T> tiles;
        tiles.dim = dim_;
        tiles.memory = space.keys;
        const int from = split * kSplitTiles;
        const int end = (piece.position + piece.num_positions - 1) / kTileTokens + 1;
        tiles.end = std::min(end - from, kSplitTiles + kWide);
        for (int tile = tiles_of(piece, split).first; tile < tiles.end; ++tile) {
            tiles.keys[tile] = keys_at(call_.spans[piece.span], piece.kv_head, (from + tile) * kTileTokens);
            tiles.values[tile] = tiles.keys[tile] + from_keys_to_values();
        }
        return tiles;
    }

    ReadyTiles made_ready(const Piece& piece, int32_t split, const Workspace& space) const {
        ReadyTiles tiles;
        tiles.dim = dim_;
        tiles.keys = space.keys;
        const Range range = tiles_of(piece, split);
        for (int tile = range.first; tile < range.last; ++tile) {
            const int position = split * kSplit + tile * kTileTokens, first = tile * kTileTokens * dim_;
            const T* keys = keys_at(call_.spans[piece.span], piece.kv_head, position);
            transpose_keys(keys, dim_, space.keys + first);
            tiles.values[tile] = widened(keys + from_keys_to_values(), space.values + first);
        }
        return tiles;
    }

    const float* widened(const float* values, float*) const { return values; }
    const float* widened(const Bfloat16* values, float* wide) const {
        for (int i = 0; i < kTileTokens * dim_; i += kLanes) store(wide + i, load_wide(values + i));
        return wide;
    }

    template <typename Tiles>
    void attend_rows(const Piece& piece, int32_t split, const Workspace& space, const Tiles& tiles) const {
        const int rows = piece.num_positions * group_;
        int row = 0;
        for (; row + kRows <= rows; row += kRows) attend_group<kRows>(piece, split, space, tiles, row);
        attend_rest<kRows - 1>(piece, split, space, tiles, row);
    }

    template <int R, typename Tiles>
    void attend_rest(const Piece& piece, int32_t split, const Workspace& space, const Tiles& tiles, int row) const {
        if constexpr (R > 0) {
            if (piece.num_positions * group_ - row == R) {
                attend_group<R>(piece, split, space, tiles, row);
            } else {
                attend_rest<R - 1>(piece, split, space, tiles, row);
            }
        }
    }

    template <int R, typename Tiles>
    void attend_group(const Piece& piece, int32_t split, const Workspace& space, const Tiles& tiles, int row) const {
        const int index = row / group_, count = (row + R - 1) / group_ - index + 1;
        const Range seen = seen_in(piece, index, count, split);
        if (seen.is_empty()) return;
        const int from = seen.first / kLanes * kLanes, to = (seen.last + kLanes - 1) / kLanes * kLanes;
        for (int t = from; t < to; t += kWide * kTileTokens)
            score_tiles<R>(space.query + row * dim_, dim_, tiles.keys_from(t / kTileTokens), space.scores + t);
        Joint joints[R];
        for (int r = 0; r < R; ++r) {
            const Range own = seen_in(piece, (row + r) / group_, 1, split);
            const Gathered now = weigh(space.scores + r * kScoreStride, from, to, own.first, own.last, scoring_);
            joints[r] = Joint(space.gathered[row + r], now);
            space.gathered[row + r] = joints[r].gathered;
        }
        for (int d = 0; d < dim_; d += kWide * kLanes) add_chunk<R, kWide>(space, tiles.values, seen, joints, row, d);
    }

    // At most C registers of dimensions, fewer at the end of a head.
    template <int R, int C, typename V>
    void add_chunk(
        const Workspace& space, const V* const* values, Range seen, const Joint* joints, int row, int d) const {
        if constexpr (C > 1) {
            if (dim_ - d < C * kLanes) return add_chunk<R, C - 1>(space, values, seen, joints, row, d);
        }
        const Tokens<V> tokens{space.scores, values, seen.first, seen.last};
        add_values<R, C>(tokens, dim_, d, joints, space.answers + row * dim_);
    }

    // ---- answers ----

    void keep_partial(const Workspace& space, int rows, float* partial) const {
        for (int r = 0; r < rows; ++r, partial += dim_ + 2) {
            std::copy_n(space.answers + r * dim_, dim_, partial);
            partial[dim_] = space.gathered[r].highest;
            partial[dim_ + 1] = space.gathered[r].sum;
        }
    }

    void put_together(const Piece& piece, const float* partials) const {
        const int rows = piece.num_positions * group_;
        const Workspace space = workspace(rows, dim_);
        const float* partial = partials + piece.partial;
        for (int32_t split = piece.first_split; split < piece.end_split; ++split)
            for (int r = 0; r < rows; ++r, partial += dim_ + 2) join_partial(space, r, partial);
        answer(piece, space);
    }

    void join_partial(const Workspace& space, int row, const float* partial) const {
        const Joint joint(space.gathered[row], {partial[dim_], partial[dim_ + 1]});
        space.gathered[row] = joint.gathered;
        for (int d = 0; d < dim_; d += kLanes) {
            float* sum = space.answers + row * dim_ + d;
            store(sum, joined(load_floats(sum), joint.before, load_floats(partial + d), joint.now));
        }
    }

    void answer(const Piece& piece, const Workspace& space) const {
        for (int r = 0; r < piece.num_positions * group_; ++r) {
            const int64_t head = piece.kv_head * group_ + r % group_;
            Q* out = static_cast<Q*>(call_.answer) + (batch_row(piece, r / group_) * call_.num_heads + head) * dim_;
            const Floats weights = splat(space.gathered[r].sum);
            for (int d = 0; d < dim_; d += kLanes)
                store_narrow(out + d, quotient(load_floats(space.answers + r * dim_ + d), weights));
        }
    }

    const Call& call_;
    const int dim_, group_;
    const Scoring scoring_;
};

}  // namespace
}  // namespace atomesh

ATOMESH_EXPORT void atomesh_paged_attention(const atomesh::Call* call) {
    using namespace atomesh;
    if (call->pool_is_bfloat16) {
        call->query_is_bfloat16 ? Step<Bfloat16, Bfloat16>(*call).run() : Step<Bfloat16, float>(*call).run();
    } else {
        call->query_is_bfloat16 ? Step<float, Bfloat16>(*call).run() : Step<float, float>(*call).run();
    }
}
