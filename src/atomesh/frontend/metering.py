"""A generation's pieces as they were, each step told to the meter once its bytes are away."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from atomesh.errors import AtomeshError
from atomesh.frontend.generation import ChoicePiece, Generation
from atomesh.observability.request_meter import RequestMeter
from atomesh.protocol.generation import Timings


async def metered(generation: Generation, meter: RequestMeter) -> AsyncGenerator[list[ChoicePiece], None]:
    try:
        async with aclosing(generation.pieces()) as steps:
            async for pieces in steps:
                yield pieces
                _tell(meter, pieces, generation.timings)
    except AtomeshError:
        meter.saw_finish("error")
        raise
    except BaseException:
        meter.saw_finish("abort")
        raise
    meter.saw_end(generation.completion_tokens, generation.timings, generation.serving_path)


def _tell(meter: RequestMeter, pieces: list[ChoicePiece], timings: Timings | None) -> None:
    meter.saw_step(sum(len(piece.token_ids) for piece in pieces), timings)
    for piece in pieces:
        if piece.finish_reason is not None:
            meter.saw_finish(piece.finish_reason)
