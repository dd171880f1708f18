import pytest

from atomesh.mesh.request_flow.answer import Answer
from atomesh.protocol.generation import GenerationRequest, Timings, TokenDelta
from atomesh.protocol.sampling import SamplingSpec

NAN, INF = float("nan"), float("inf")


def taken(**fields: object) -> TokenDelta:
    sampling = SamplingSpec(seed=0, max_tokens=4)
    answer = Answer(GenerationRequest(request_id="r", prompt_token_ids=[1, 2, 3], sampling=sampling))
    [delta] = answer.take([TokenDelta(request_id="r", token_ids=[5], **fields)], "unified")  # type: ignore[arg-type]
    return delta


@pytest.mark.parametrize(("told", "passed_on"), [(-(10**12), 0), (0, 0), (2, 2), (3, 3), (4, 3), (10**15, 3)])
def test_no_more_of_a_prompt_is_cached_than_it_has(told: int, passed_on: int) -> None:
    assert taken(cached_tokens=told).cached_tokens == passed_on


@pytest.mark.parametrize("times", [(NAN, 0.0), (0.0, -INF), (0.0, INF), (-1.0, 0.0), (0.0, 0.0, 1e300)])
def test_times_that_are_none_are_not_told(times: tuple[float, ...]) -> None:
    assert taken(timings=Timings(*times)).timings is None


def test_times_are_passed_on() -> None:
    assert taken(timings=Timings(0.25, 0.5, 0.125)).timings == Timings(0.25, 0.5, 0.125)


def test_it_is_steady_once_begun_and_while_nothing_is_heard_a_second_time() -> None:
    sampling = SamplingSpec(seed=0, max_tokens=4)
    answer = Answer(GenerationRequest(request_id="r", prompt_token_ids=[1], sampling=sampling))
    steady = [answer.is_steady]
    for tokens in ([5], [6]):
        answer.take([TokenDelta(request_id="r", token_ids=tokens)], "unified")
    steady.append(answer.is_steady)
    answer.hear_again()
    for tokens in ([5], [6]):
        steady.append(answer.is_steady)
        answer.take([TokenDelta(request_id="r", token_ids=tokens)], "unified")
    steady.append(answer.is_steady)
    assert steady == [False, True, False, False, True]
