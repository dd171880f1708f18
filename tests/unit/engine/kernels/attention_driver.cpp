// Random batches through the attention kernel in buffers of exactly their size, for a sanitiser to watch: every batch on
// one thread and on three, whose answers must be the same bytes. Argument: how many batches.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "attention_plan.h"

using namespace atomesh;

extern "C" void atomesh_paged_attention(const Call* call);

namespace {

std::mt19937 generator(1);

int any(int least, int most) { return std::uniform_int_distribution<int>(least, most)(generator); }

struct Batch {
    Call call{};
    std::vector<Span> spans;
    std::vector<int32_t> blocks;
    std::vector<uint8_t> pool, query, key_value, answer;
};

std::vector<uint8_t> numbers(size_t count, bool is_bfloat16) {
    std::vector<uint8_t> bytes(count * (is_bfloat16 ? 2 : 4));
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < count; ++i) {
        const float x = normal(generator);
        const char* from = reinterpret_cast<const char*>(&x) + (is_bfloat16 ? 2 : 0);
        std::memcpy(bytes.data() + i * (is_bfloat16 ? 2 : 4), from, is_bfloat16 ? 2 : 4);
    }
    return bytes;
}

Batch draw() {
    Batch batch;
    Call& call = batch.call;
    call.num_kv_heads = any(1, 3);
    call.num_heads = call.num_kv_heads * any(1, 9);
    call.head_dim = 16 * any(1, 9);
    call.block_size = 16 * any(1, 2);
    call.window = any(0, 1) ? any(1, 400) : 0;
    call.pool_is_bfloat16 = any(0, 1);
    call.query_is_bfloat16 = any(0, 1);
    call.scale = 0.2f;
    call.softcap = any(0, 3) ? 0.0f : 5.0f;
    int32_t rows = 0, num_blocks = 0;
    for (int i = any(1, 4); i > 0; --i) {
        const int start = any(0, 1) ? any(0, 40) : any(0, 700), count = any(0, 1) ? 1 : any(2, 60);
        batch.spans.push_back({rows, start, start + count, num_blocks});
        rows += count;
        num_blocks += (start + count + call.block_size - 1) / call.block_size;
    }
    batch.blocks.resize(num_blocks);
    std::iota(batch.blocks.begin(), batch.blocks.end(), 0);
    std::shuffle(batch.blocks.begin(), batch.blocks.end(), generator);
    const size_t dim = call.head_dim, of_query = call.num_heads * dim, of_kv = 2 * call.num_kv_heads * dim;
    call.block_stride = of_kv * call.block_size;
    call.query_stride = of_query;
    call.key_value_stride = of_kv;
    call.num_spans = static_cast<int32_t>(batch.spans.size());
    batch.pool = numbers(call.block_stride * num_blocks, call.pool_is_bfloat16);
    batch.query = numbers(of_query * rows, call.query_is_bfloat16);
    batch.key_value = numbers(of_kv * rows, call.query_is_bfloat16);
    batch.answer.resize(batch.query.size());
    return batch;
}

std::vector<uint8_t> answers(Batch& batch, int threads) {
    Call& call = batch.call;
    call.pool = batch.pool.data();
    call.query = batch.query.data();
    call.key_value = batch.key_value.data();
    call.answer = batch.answer.data();
    call.spans = batch.spans.data();
    call.blocks = batch.blocks.data();
    call.threads = threads;
    atomesh_paged_attention(&call);
    return batch.answer;
}

}  // namespace

int main(int, char** arguments) {
    for (int i = std::atoi(arguments[1]); i > 0; --i) {
        Batch batch = draw();
        if (answers(batch, 1) != answers(batch, 3)) {
            std::printf("batch %d from the end differs on three threads\n", i);
            return 1;
        }
    }
    std::printf("same\n");
    // The pool's threads never end: leave without waiting for them.
    std::fflush(stdout);
    std::_Exit(0);
}
