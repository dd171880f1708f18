import pytest

from atomesh.engine.core.admission import SequenceQueue, check_capacity, max_kv_tokens, rank_of
from atomesh.engine.core.request import RequestState, TokenSequence
from atomesh.errors import ContextLengthError, InvalidRequestError
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.scripted_engine import scripted_request


def request_of(prompt_len: int, max_tokens: int, n: int = 1) -> GenerationRequest:
    return scripted_request("r", [1] * prompt_len, SamplingSpec(seed=0, max_tokens=max_tokens), n=n)


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "expected"),
    [(10, 1, 10), (10, 2, 11), (10, 0, 10), (10, 90, 99), (10, 1000, 99), (99, 1, 99)],
)
def test_the_last_sampled_token_needs_no_room(prompt_len: int, max_tokens: int, expected: int) -> None:
    assert max_kv_tokens(request_of(prompt_len, max_tokens), max_model_len=100) == expected


def test_a_request_that_fits_to_the_token_is_accepted_and_one_more_is_refused() -> None:
    check_capacity(request_of(30, 35), max_model_len=100, pool_tokens=64)
    with pytest.raises(InvalidRequestError, match=r"room for 65 tokens .* which holds 64; .*max_tokens"):
        check_capacity(request_of(30, 36), max_model_len=100, pool_tokens=64)


def test_a_prompt_that_fills_the_context_is_refused_in_the_contracts_words() -> None:
    check_capacity(request_of(99, 1), max_model_len=100, pool_tokens=1000)
    with pytest.raises(ContextLengthError, match=r"maximum context length is 100 tokens.*has 100") as caught:
        check_capacity(request_of(100, 1), max_model_len=100, pool_tokens=1000)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.status == 400


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no tokens"):
        check_capacity(request_of(0, 1), max_model_len=100, pool_tokens=1000)


@pytest.mark.parametrize("n", [0, 129])
def test_n_is_bounded(n: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"n is {n}; it must lie in \[1, 128\]"):
        check_capacity(request_of(4, 1, n), max_model_len=100, pool_tokens=1000)


def test_fcfs_ignores_priority() -> None:
    assert rank_of("fcfs", priority=-100, arrival=7) == 7


def test_a_priority_step_outweighs_a_thousand_arrivals_but_not_all() -> None:
    low = rank_of("priority", priority=1, arrival=0)
    assert rank_of("priority", priority=0, arrival=1000) < low
    assert rank_of("priority", priority=0, arrival=1025) > low


def entry(*key: int) -> TokenSequence:
    request = scripted_request(str(key), [1])
    return TokenSequence(sum(key), RequestState(request, 0.0), (0,), key, request.sampling, [1])


def test_a_queue_keeps_its_order_whatever_comes_when() -> None:
    queue = SequenceQueue()
    entries = [entry(2, 2, 0), entry(1, 5, 1), entry(1, 5, 0), entry(-3, 9, 0)]
    for one in entries:
        queue.add(one)
    assert list(queue) == [entries[3], entries[2], entries[1], entries[0]]
    assert (queue.first, queue.last) == (entries[3], entries[0])
    queue.remove(entries[1])
    assert entries[1] not in queue
    assert entries[2] in queue
    assert len(queue) == 3
    queue.check_invariants()


def test_what_is_not_in_a_queue_cannot_be_removed() -> None:
    queue = SequenceQueue()
    queue.add(entry(1, 1, 0))
    with pytest.raises(ValueError, match="not in the queue"):
        queue.remove(entry(1, 1, 0))


def test_the_books_notice_a_queue_out_of_order() -> None:
    queue = SequenceQueue()
    queue._sequences = [entry(2, 2, 0), entry(1, 1, 0)]
    with pytest.raises(AssertionError, match="out of order"):
        queue.check_invariants()
