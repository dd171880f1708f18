"""The double must catch what it is there to catch."""

import pytest

from atomesh.engine.core.batch import BlockCopy, ScheduledBatch, ScheduledSequence
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.scripted_executor import ScriptedExecutor, token_from_history, token_from_list

SPEC = SamplingSpec(seed=0, max_tokens=4)


def scheduled(
    history: list[int], start: int, block_table: list[int], sequence_id: int = 1
) -> ScheduledSequence:
    return ScheduledSequence(sequence_id, SPEC, history[start:], start, block_table, (0,), history, [])


def executor() -> ScriptedExecutor:
    return ScriptedExecutor(token_from_history(1000), num_blocks=4, block_size=2)


def token_after(
    one: ScriptedExecutor, *sequences: ScheduledSequence, copies: tuple[BlockCopy, ...] = ()
) -> int:
    result = one.execute(ScheduledBatch(sequences, copies))
    return result.outcomes[1].sampled[0].token_id


def test_the_token_depends_on_the_whole_history_and_not_on_how_it_was_computed() -> None:
    whole = token_after(executor(), scheduled([1, 2, 3, 4], 0, [0, 1]))
    chunked = executor()
    token_after(chunked, scheduled([1, 2, 3], 0, [3, 2]))
    assert token_after(chunked, scheduled([1, 2, 3, 4], 3, [3, 2])) == whole
    assert token_after(executor(), scheduled([9, 2, 3, 4], 0, [0, 1])) != whole


def test_choices_differ() -> None:
    next_token = token_from_history(1000)
    assert next_token([1, 2], 0) != next_token([1, 2], 1)


def test_a_list_is_repeated() -> None:
    next_token = token_from_list(2, [7, 8])
    assert [next_token([0] * length, 0) for length in (2, 3, 4)] == [7, 8, 7]


def test_reading_what_was_never_written_raises() -> None:
    with pytest.raises(AssertionError, match="reads foreign KV at position 0, block 1"):
        token_after(executor(), scheduled([1, 2, 3], 2, [1, 2]))


def test_reading_the_same_tokens_after_another_history_raises() -> None:
    one = executor()
    token_after(one, scheduled([1, 2, 5, 6], 0, [0, 1]))
    token_after(one, scheduled([3, 4, 5, 6], 0, [2, 3]))
    with pytest.raises(AssertionError, match="reads foreign KV at position 2, block 3"):
        token_after(one, scheduled([1, 2, 5, 7], 3, [0, 3]))


def test_a_block_that_two_sequences_write_in_one_step_raises() -> None:
    with pytest.raises(AssertionError, match="sequence 1 reads another sequence's KV"):
        token_after(executor(), scheduled([1, 2], 0, [0]), scheduled([3, 4], 0, [0], sequence_id=2))


def test_a_block_that_is_filled_in_this_very_step_cannot_be_shared_yet() -> None:
    with pytest.raises(AssertionError, match="sequence 2 reads foreign KV"):
        token_after(executor(), scheduled([1, 2], 0, [0]), scheduled([1, 2, 3], 2, [0, 1], sequence_id=2))


def test_copies_are_made_before_anything_is_written() -> None:
    one = executor()
    token_after(one, scheduled([1], 0, [0]))
    first = scheduled([1, 2], 1, [0])
    second = scheduled([1, 2], 1, [1], sequence_id=2)
    result = one.execute(ScheduledBatch((first, second), (BlockCopy(source=0, target=1),)))
    assert result.outcomes[1] == result.outcomes[2]
