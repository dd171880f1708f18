"""The kernel against the definition (unused slots hold NaN) and against itself bit by bit."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from atomesh.engine.attention.cpu_attention import CpuAttention
from atomesh.engine.attention.paged_kv import PagedKV
from atomesh.engine.attention.reference import ReferenceAttention
from atomesh.engine.attention.shape import AttentionShape, SequenceSpan
from atomesh.engine.kernels.library import load_kernels
from atomesh.errors import ConfigurationError
from atomesh.testing.paged_batch import lay_out, poisoned_pool

pytestmark = pytest.mark.skipif(load_kernels() is None, reason="no compiler, or no such processor")

NUM_BLOCKS = 256
PLAIN = AttentionShape(6, 2, 16, 0.35, None, (None,))


@dataclass(frozen=True)
class Case:
    shape: AttentionShape
    batch: Sequence[tuple[int, int]]
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    threads: int = 1

    def spans(self) -> list[SequenceSpan]:
        return lay_out(self.batch, self.block_size, len(self.batch), NUM_BLOCKS)

    def pool(self) -> PagedKV:
        spans = self.spans()
        return poisoned_pool(
            self.shape, self.block_size, spans, seed=1, num_blocks=NUM_BLOCKS, dtype=self.dtype
        )

    def heads(self) -> torch.Tensor:
        """Queries, keys and values as a fused product would bring them."""
        rows = sum(end - start for start, end in self.batch)
        generator = torch.Generator().manual_seed(3)
        heads = torch.randn(
            rows, self.shape.num_heads + 2 * self.shape.num_kv_heads, self.shape.head_dim, generator=generator
        )
        return heads.to(self.dtype)


def kernels() -> ctypes.CDLL:
    library = load_kernels()
    assert library is not None
    return library


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


spans_of_a_batch = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 70), st.integers(240, 270), st.integers(500, 530)),
        st.one_of(st.just(1), st.integers(1, 12)),
    ).map(lambda drawn: (drawn[0], drawn[0] + drawn[1])),
    min_size=1,
    max_size=3,
)
window = st.one_of(st.none(), st.integers(1, 40), st.integers(200, 300))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    group = draw(st.sampled_from([1, 3, 4, 8]))
    kv_heads = draw(st.integers(1, 3))
    shape = AttentionShape(
        num_heads=group * kv_heads,
        num_kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([16, 32, 48, 64, 80, 128, 256])),
        scale=draw(st.sampled_from([0.05, 0.35])),
        softcap=draw(st.sampled_from([None, None, 1.5, 50.0])),
        windows=(draw(window), draw(window)),
    )
    return Case(
        shape,
        draw(spans_of_a_batch),
        draw(st.sampled_from([16, 32])),
        draw(st.sampled_from([torch.float32, torch.bfloat16])),
        draw(st.integers(1, 3)),
    )


@given(cases())
@example(Case(replace(PLAIN, num_heads=66, num_kv_heads=2), [(0, 40), (256, 257)]))
@example(Case(replace(PLAIN, windows=(1,)), [(0, 40), (256, 257), (511, 515)], threads=2))
@example(Case(replace(PLAIN, windows=(256,)), [(1000, 1001)], threads=2))
def test_equals_the_definition(case: Case) -> None:
    """In bfloat16, an exact answer would be rounded once: the kernel's is at most the number beside it."""
    pools = case.pool(), case.pool()
    spans, heads = case.spans(), case.heads()
    query, key_value = heads[:, : case.shape.num_heads], heads[:, case.shape.num_heads :]
    bound = 1e-5 if case.dtype == torch.float32 else 2**-7
    with threads(case.threads):
        attention = CpuAttention(case.shape, pools[0], kernels()).prepare(spans)
        reference = ReferenceAttention(case.shape, pools[1], spans)
        for layer in range(len(case.shape.windows)):
            found = attention.attend(layer, query, key_value)
            torch.testing.assert_close(
                found, reference.attend(layer, query, key_value), rtol=bound, atol=1e-5
            )
    assert torch.equal(pools[0].storage.nan_to_num(99.0), pools[1].storage.nan_to_num(99.0))


SHAPES = {
    "grouped": AttentionShape(6, 2, 64, 0.125, None, (None,)),
    "one head each": AttentionShape(2, 2, 32, 0.2, None, (None,)),
    "a group of eight": AttentionShape(8, 1, 48, 0.2, None, (None,)),
    "window": AttentionShape(6, 2, 16, 0.35, None, (300,)),
    "cap": AttentionShape(6, 2, 16, 0.35, 2.0, (None,)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_row_is_the_same_however_it_is_computed(shape: AttentionShape, dtype: torch.dtype) -> None:
    """Prefilled at once or in chunks, decoded, among others, on one thread or on three: bit by bit."""
    whole = Case(shape, [(0, 600)], dtype=dtype)
    expected = answers(whole, [(0, 600)], 1)
    assert not expected.isnan().any()
    for cuts in ([(0, 600)], [(0, 1), (1, 255), (255, 300), (300, 599), (599, 600)]):
        for count in (1, 3):
            assert torch.equal(answers(whole, cuts, count), expected)
    decoded = [(at, at + 1) for at in (0, 17, 255, 256, 511, 512, 599)]
    assert torch.equal(answers(whole, [(0, 600), *decoded], 3), expected)


def answers(case: Case, steps: Sequence[tuple[int, int]], count: int) -> torch.Tensor:
    """Of a sequence computed in `steps`, each in one batch with two others that change from step to step."""
    shape, heads = case.shape, case.heads()
    pool = PagedKV(torch.zeros(NUM_BLOCKS, 1, 2, shape.num_kv_heads, 16, shape.head_dim, dtype=case.dtype))
    blocks = [(7 * i + 3) % 100 for i in range(38)]
    found = heads.new_empty(600, shape.num_heads * shape.head_dim)
    with threads(count):
        for index, (start, end) in enumerate(steps):
            before = SequenceSpan(0, 3 * index, 3 * index + 2, [200, 201, 202])
            after = SequenceSpan(2 + end - start, 40, 41, [210, 211, 212])
            spans = [before, SequenceSpan(2, start, end, blocks), after]
            rows = torch.cat((heads[:2], heads[start:end], heads[-1:]))
            attention = CpuAttention(shape, pool, kernels()).prepare(spans)
            found[start:end] = attention.attend(0, rows[:, : shape.num_heads], rows[:, shape.num_heads :])[
                2:-1
            ]
    return found


def test_float32_queries_over_a_bfloat16_pool() -> None:
    case = Case(PLAIN, [(0, 20), (40, 41)], dtype=torch.bfloat16)
    heads = case.heads().float()
    query, key_value = heads[:, :6], heads[:, 6:]
    pools, spans = (case.pool(), case.pool()), case.spans()
    torch.testing.assert_close(
        CpuAttention(case.shape, pools[0], kernels()).prepare(spans).attend(0, query, key_value),
        ReferenceAttention(case.shape, pools[1], spans).attend(0, query, key_value),
        rtol=1e-5,
        atol=1e-5,
    )


def test_new_keys_and_values_are_rounded_as_torch_does() -> None:
    pool = PagedKV(torch.zeros(1, 1, 2, 2, 16, 16, dtype=torch.bfloat16))
    key_value = torch.randn(16, 4, 16) * torch.logspace(-20, 20, 16)[:, None, None]
    span = SequenceSpan(0, 0, 16, [0])
    CpuAttention(PLAIN, pool, kernels()).prepare([span]).attend(0, torch.zeros(16, 6, 16), key_value)
    expected = key_value.to(torch.bfloat16).view(16, 2, 2, 16).permute(1, 2, 0, 3)
    assert torch.equal(pool.storage[0, 0], expected)


def test_numbers_that_are_none_stay_in_their_own_row() -> None:
    case = Case(PLAIN, [(3, 4), (3, 4)])
    pool, heads = case.pool(), case.heads()
    pool.storage[case.spans()[0].blocks[0], :, :, :, 1] = float("nan")
    found = CpuAttention(case.shape, pool, kernels()).prepare(case.spans())
    sick, sound = found.attend(0, heads[:, :6], heads[:, 6:])
    assert sick.isnan().all()
    assert sound.isfinite().all()


@pytest.mark.parametrize(("head_dim", "dtype"), [(8, torch.float32), (16, torch.float16)])
def test_what_the_kernel_cannot_do_is_refused(head_dim: int, dtype: torch.dtype) -> None:
    pool = PagedKV(torch.zeros(1, 1, 2, 2, 16, head_dim, dtype=dtype))
    with pytest.raises(ConfigurationError, match="use attention torch"):
        CpuAttention(replace(PLAIN, head_dim=head_dim), pool, kernels())
