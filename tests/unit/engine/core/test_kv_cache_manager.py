import pytest

from atomesh.engine.core.batch import BlockCopy
from atomesh.engine.core.kv_cache_manager import KVCacheManager
from atomesh.engine.core.request import RequestState, TokenSequence
from atomesh.protocol.block_hash import BlockHasher
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.scripted_engine import scripted_request

BLOCK = 4


def manager(num_blocks: int = 8, model: str = "m", *, enable_prefix_cache: bool = True) -> KVCacheManager:
    hasher = BlockHasher(b"secret", model, BLOCK)
    return KVCacheManager(num_blocks, hasher, enable_prefix_cache=enable_prefix_cache)


def sequence(
    prompt: list[int], salt: str = "", spec: SamplingSpec | None = None, sequence_id: int = 1
) -> TokenSequence:
    request = scripted_request("r", prompt, spec, cache_salt=salt)
    return TokenSequence(
        sequence_id, RequestState(request, 0.0), (0,), (0, 0, 0), request.sampling, request.prompt_token_ids
    )


def admitted(kv: KVCacheManager, one: TokenSequence) -> TokenSequence:
    assert kv.admit(one, kv.match(one), reserve=0)
    return one


def computed(kv: KVCacheManager, one: TokenSequence) -> TokenSequence:
    admitted(kv, one)
    one.num_computed_tokens = one.num_tokens
    kv.register(one)
    return one


def test_admission_gives_blocks_for_every_known_token_or_none() -> None:
    kv = manager(num_blocks=2)
    long = sequence(list(range(9)))
    assert not kv.admit(long, [], reserve=0)
    assert (long.block_table, kv.pool.num_free) == ([], 2)
    fits = admitted(kv, sequence(list(range(8))))
    assert len(fits.block_table) == 2
    kv.check_invariants([fits])


def test_admission_leaves_the_reserve() -> None:
    kv = manager(num_blocks=3)
    assert not kv.admit(sequence(list(range(9))), [], reserve=1)
    assert kv.admit(sequence(list(range(8))), [], reserve=1)


@pytest.mark.parametrize(
    ("prompt_len", "cached"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8), (12, 8), (13, 12)]
)
def test_a_repeated_prompt_finds_the_whole_blocks_before_its_last_token(prompt_len: int, cached: int) -> None:
    kv = manager()
    kv.release(computed(kv, sequence(list(range(prompt_len)))))
    again = admitted(kv, sequence(list(range(prompt_len)), sequence_id=2))
    assert again.num_computed_tokens == cached
    kv.check_invariants([again])


def test_running_sequences_share_the_blocks_of_a_common_prefix() -> None:
    kv = manager()
    first = computed(kv, sequence([*range(8), 100]))
    second = admitted(kv, sequence([*range(8), 200], sequence_id=2))
    assert second.block_table[:2] == first.block_table[:2]
    assert second.block_table[2] != first.block_table[2]
    assert kv.pool.num_free == 4
    kv.check_invariants([first, second])


def test_a_prefix_is_found_only_under_its_salt() -> None:
    kv = manager()
    kv.release(computed(kv, sequence(list(range(9)), salt="tenant a")))
    assert kv.match(sequence(list(range(9)), salt="tenant b")) == []
    assert kv.match(sequence(list(range(9)))) == []
    assert len(kv.match(sequence(list(range(9)), salt="tenant a"))) == 2


def test_the_same_tokens_after_another_prefix_are_another_block() -> None:
    kv = manager()
    kv.release(computed(kv, sequence([1, 1, 1, 1, 5, 6, 7, 8, 0])))
    assert kv.match(sequence([2, 2, 2, 2, 5, 6, 7, 8, 0])) == []
    assert kv.match(sequence([5, 6, 7, 8, 0])) == []


def test_tokens_do_not_run_into_each_other() -> None:
    kv = manager()
    kv.release(computed(kv, sequence([1, 0, 0, 256, 9])))
    assert kv.match(sequence([1, 0, 0, 1, 9])) == []
    assert kv.match(sequence([256, 1, 0, 0, 9])) == []


def test_prompt_logprobs_want_the_whole_prompt_computed() -> None:
    kv = manager()
    kv.release(computed(kv, sequence(list(range(9)))))
    spec = SamplingSpec(seed=0, max_tokens=1, prompt_logprobs=0)
    assert kv.match(sequence(list(range(9)), spec=spec)) == []


def test_without_a_prefix_cache_nothing_is_found_or_kept() -> None:
    kv = manager(enable_prefix_cache=False)
    kv.release(computed(kv, sequence(list(range(9)))))
    assert kv.match(sequence(list(range(9)))) == []
    assert (kv.pool.num_free, kv.pool.num_idle) == (8, 0)


def test_whoever_computes_a_known_prefix_switches_to_the_known_block() -> None:
    kv = manager()
    first, second = sequence(list(range(9))), sequence([*range(8), 50], sequence_id=2)
    for one in (first, second):
        assert kv.admit(one, [], reserve=0)
    assert kv.pool.num_free == 2
    for one in (first, second):
        one.num_computed_tokens = 9
        kv.register(one)
    assert second.block_table[:2] == first.block_table[:2]
    assert kv.pool.num_free == 4
    kv.check_invariants([first, second])


def test_a_sequence_grows_by_a_block_at_a_border_and_not_before() -> None:
    kv = manager(num_blocks=2)
    one = computed(kv, sequence([1, 2, 3]))
    for token, num_blocks in ((4, 1), (5, 2), (6, 2), (7, 2), (8, 2)):
        one.output_token_ids.append(token)
        assert kv.grow(one, [])
        assert len(one.block_table) == num_blocks
    one.output_token_ids.append(9)
    assert not kv.grow(one, [])
    assert len(one.block_table) == 2


def fork_two(kv: KVCacheManager, prompt: list[int]) -> tuple[TokenSequence, TokenSequence]:
    parent = computed(kv, sequence(prompt))
    branches = parent.branch(2, 0), parent.branch(3, 1)
    for branch in branches:
        kv.fork(parent, branch)
        branch.output_token_ids.append(7)
    kv.release(parent)
    return branches


def test_branches_share_full_blocks_and_the_first_writer_copies_the_partial_one() -> None:
    kv = manager()
    first, second = fork_two(kv, list(range(6)))
    assert kv.pool.num_free == 6
    shared_head, shared_tail = first.block_table
    copies: list[BlockCopy] = []
    assert kv.grow(first, copies)
    assert kv.grow(second, copies)
    assert copies == [BlockCopy(source=shared_tail, target=first.block_table[1])]
    assert first.block_table[0] == second.block_table[0] == shared_head
    assert second.block_table[1] == shared_tail
    kv.check_invariants([first, second])
    kv.end_step()
    kv.check_invariants([first, second])


def test_branches_of_full_blocks_copy_nothing() -> None:
    kv = manager()
    first, second = fork_two(kv, list(range(8)))
    copies: list[BlockCopy] = []
    assert kv.grow(first, copies)
    assert kv.grow(second, copies)
    assert copies == []
    assert first.block_table[:2] == second.block_table[:2]
    assert first.block_table[2] != second.block_table[2]


def test_the_source_of_a_copy_is_not_reused_within_the_step() -> None:
    kv = manager(num_blocks=2)
    first, second = fork_two(kv, [1, 2])
    copies: list[BlockCopy] = []
    assert kv.grow(first, copies)
    kv.release(second)
    assert kv.pool.num_free == 0
    kv.end_step()
    assert kv.pool.num_free == 1
    kv.check_invariants([first])


def test_the_last_branch_left_writes_in_place() -> None:
    kv = manager(num_blocks=1)
    first, second = fork_two(kv, [1, 2])
    copies: list[BlockCopy] = []
    assert not kv.grow(first, copies)
    kv.release(second)
    assert kv.grow(first, copies)
    assert copies == []


def test_reset_forgets_what_nobody_holds() -> None:
    kv = manager()
    held = computed(kv, sequence(list(range(9))))
    kv.release(computed(kv, sequence(list(range(100, 109)), sequence_id=2)))
    kv.reset_prefix_cache()
    assert kv.match(sequence(list(range(100, 109)))) == []
    assert kv.match(sequence(list(range(9)))) == held.block_table[:2]
    kv.check_invariants([held])


def test_the_books_notice_a_leaked_reference() -> None:
    kv = manager()
    one = computed(kv, sequence(list(range(9))))
    with pytest.raises(AssertionError, match="0 holders, 1 counted"):
        kv.check_invariants([])
    one.block_table = one.block_table[:1]
    with pytest.raises(AssertionError, match="more computed tokens than room"):
        kv.check_invariants([one])
