import pytest
from msgspec.structs import replace

from atomesh.errors import FatalRequestError
from atomesh.frontend.http.error_answers import error_response
from atomesh.mesh.request_flow.quarantine import FOR_S, Quarantine
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec

REQUEST = GenerationRequest(
    request_id="r", prompt_token_ids=[1, 2, 3], sampling=SamplingSpec(seed=0, max_tokens=4)
)


def test_a_prompt_is_barred_whoever_asks_until_its_time_is_over() -> None:
    quarantine = Quarantine()
    quarantine.bar(REQUEST, 10.0)
    again = replace(REQUEST, request_id="s", sampling=SamplingSpec(seed=1, max_tokens=9))
    with pytest.raises(FatalRequestError, match="another 120 s"):
        quarantine.check(again, 10.0)
    assert (quarantine.barred, quarantine.refused) == (1, 1)
    quarantine.check(again, 10.0 + FOR_S)
    assert len(quarantine) == 0


@pytest.mark.parametrize("change", [{"prompt_token_ids": [1, 2, 4]}, {"cache_salt": "another tenant's"}])
def test_no_other_is(change: dict[str, object]) -> None:
    quarantine = Quarantine()
    quarantine.bar(REQUEST, 0.0)
    quarantine.check(replace(REQUEST, **change), 0.0)


def test_so_many_are_remembered_the_last_ones() -> None:
    quarantine = Quarantine(max_prompts=2)
    prompts = [replace(REQUEST, prompt_token_ids=[number]) for number in range(3)]
    for now, prompt in enumerate([*prompts, prompts[1]]):
        quarantine.bar(prompt, float(now))
    quarantine.check(prompts[0], 4.0)
    for prompt in prompts[1:]:
        with pytest.raises(FatalRequestError):
            quarantine.check(prompt, 4.0)
    assert len(quarantine) == 2


def test_clients_are_told_not_to_retry() -> None:
    response = error_response(FatalRequestError("no"))
    assert (response.status_code, response.headers["x-should-retry"]) == (500, "false")
