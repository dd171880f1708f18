"""What is told of an answer whose pieces are all taken the moment they arrive."""

from typing import Any

from atomesh.frontend.generation import ChoicePiece, Generation, StepPieces, TextOptions
from atomesh.frontend.http.server_timing import ServerTiming
from atomesh.frontend.metering import Metering
from atomesh.frontend.openai.delivery import CollectedDelivery
from atomesh.frontend.openai.renderer import WholeChoice
from atomesh.observability.metrics import FrontendMetrics
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.manual_clock import ManualClock


def test_a_whole_answer_s_decode_time_runs_from_its_first_piece_whoever_took_it() -> None:
    clock = ManualClock()
    service: Any = None
    tokenizer: Any = ByteTokenizer()
    request = GenerationRequest(
        request_id="r", prompt_token_ids=[1], sampling=SamplingSpec(seed=0, max_tokens=9)
    )
    generation = Generation(request, TextOptions(), tokenizer, service)
    timing = ServerTiming(clock, [generation])
    metering = Metering(FrontendMetrics().for_model("m"), clock, clock.now(), [generation])
    choice = WholeChoice()
    delivery = CollectedDelivery([[choice]], timing, metering)
    clock.advance(3.0)
    for number, letter in enumerate("abc"):
        delivery.deliver(StepPieces(0, [ChoicePiece(0, letter, [97 + number], [], number == 0)]))
        clock.advance(0.5)
    assert (choice.text, choice.token_ids) == ("abc", [97, 98, 99])
    assert timing.explanation()["timings"] == {"decode": 1500.0}
