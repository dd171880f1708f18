import pytest

from atomesh.engine.core.request import RequestState, TokenSequence
from atomesh.engine.core.stop import Stop, find_stop
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.scripted_engine import scripted_request

EOS, STOP, OTHER = 2, 5, 9


def sequence(prompt_len: int, output: list[int], spec: SamplingSpec) -> TokenSequence:
    request = scripted_request("r", [1] * prompt_len, spec)
    return TokenSequence(
        sequence_id=1,
        request=RequestState(request, arrival_s=0.0),
        choices=(0,),
        order_key=(0, 0, 0),
        sampling=spec,
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=output,
    )


@pytest.mark.parametrize(
    ("output", "spec", "expected"),
    [
        ([OTHER], {}, None),
        ([OTHER, EOS], {}, Stop("stop")),
        ([EOS, OTHER], {}, None),
        ([OTHER, STOP], {}, Stop("stop", STOP)),
        ([EOS], {"stop_token_ids": (EOS,)}, Stop("stop")),
        ([EOS], {"eos_token_ids": ()}, None),
        ([EOS], {"min_tokens": 2}, None),
        ([OTHER, EOS], {"min_tokens": 2}, Stop("stop")),
        ([STOP], {"min_tokens": 2}, None),
        ([OTHER] * 3, {"max_tokens": 3}, Stop("length")),
        ([OTHER] * 2, {"max_tokens": 3}, None),
        ([OTHER, OTHER, EOS], {"max_tokens": 3}, Stop("stop")),
        ([], {"max_tokens": 0}, Stop("length")),
    ],
)
def test_the_reason_to_stop(output: list[int], spec: dict[str, object], expected: Stop | None) -> None:
    fields = {"seed": 0, "max_tokens": 10, "eos_token_ids": (EOS,), "stop_token_ids": (STOP,), **spec}
    assert find_stop(sequence(4, output, SamplingSpec(**fields)), max_model_len=100) == expected


@pytest.mark.parametrize(("output_len", "expected"), [(5, None), (6, Stop("length"))])
def test_the_context_ends_the_answer_even_before_min_tokens(output_len: int, expected: Stop | None) -> None:
    spec = SamplingSpec(seed=0, max_tokens=50, min_tokens=40)
    assert find_stop(sequence(4, [OTHER] * output_len, spec), max_model_len=10) == expected
