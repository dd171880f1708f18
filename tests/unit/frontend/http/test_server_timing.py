import pytest

from atomesh.frontend.generation import Generation, TextOptions
from atomesh.frontend.http.server_timing import ServerTiming
from atomesh.protocol.generation import GenerationRequest, ServingPath, Timings
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.manual_clock import ManualClock


def generation(path: ServingPath | None = None, timings: Timings | None = None) -> Generation:
    request = GenerationRequest(
        request_id="r", prompt_token_ids=[1], sampling=SamplingSpec(seed=0, max_tokens=1)
    )
    made = Generation(request, TextOptions(), ByteTokenizer(), None)
    made.serving_path, made.timings = path, timings
    return made


def test_what_is_not_known_is_left_out() -> None:
    timing = ServerTiming(ManualClock(), [generation()])
    assert timing.headers() == []
    assert timing.explanation() == {"timings": {}, "serving_path": None}


def test_the_head_of_a_stream_says_what_the_first_token_cost() -> None:
    clock = ManualClock()
    timing = ServerTiming(clock, [generation("prefill-decode", Timings(0.25, 0.5))])
    timing.saw_step()
    assert timing.headers() == [
        (b"x-serving-path", b"prefill-decode"),
        (b"server-timing", b"queue;dur=250.000, prefill;dur=500.000, transfer;dur=0.000"),
    ]


def test_the_end_says_it_all() -> None:
    clock = ManualClock()
    timing = ServerTiming(clock, [generation("recomputed", Timings(0.25, 0.5, 0.125))])
    timing.saw_step()
    clock.advance(2.0)
    timing.saw_step()
    parts = {"queue": 250.0, "prefill": 500.0, "transfer": 125.0, "decode": 2000.0}
    assert timing.explanation() == {"timings": parts, "serving_path": "recomputed"}
    assert timing.headers(is_complete=True)[1][1].endswith(b"transfer;dur=125.000, decode;dur=2000.000")


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        (("unified", "prefill-decode"), "prefill-decode"),
        (("prefill-decode", "local-prefill"), "local-prefill"),
        (("recomputed", "local-prefill", "unified"), "recomputed"),
        ((None, "unified"), "unified"),
    ],
)
def test_of_several_prompts_the_least_usual_path_and_the_slowest_parts(
    paths: tuple[ServingPath | None, ...], told: str
) -> None:
    made = [generation(path, Timings(0.001 * index, 0.002)) for index, path in enumerate(paths)]
    explained = ServerTiming(ManualClock(), made).explanation()
    assert explained["serving_path"] == told
    assert explained["timings"]["queue"] == pytest.approx(len(paths) - 1)
