"""Steps of a scripted service on the way that a mesh's take: through a leg's stream, some ahead of their
reader."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from atomesh.errors import AtomeshError, EngineError
from atomesh.frontend.token_service import Carry
from atomesh.mesh.backends.request_stream import RequestStream
from atomesh.protocol.generation import TokenDelta


async def going_ahead(
    steps: AsyncGenerator[list[TokenDelta], None], choices: int, carry: Carry | None
) -> AsyncGenerator[list[TokenDelta], None]:
    """`steps`, of which `carry` takes what it may, as TokenService says; their errors are raised here."""
    stream = RequestStream(choices, lambda _: None)
    pushing = asyncio.ensure_future(_push(steps, stream))
    try:
        deltas = await stream.next()
        while deltas is not None:
            yield deltas
            deltas = await stream.next(carry)
    except EngineError:
        await pushing  # raises it where it is none of ours
        raise
    finally:
        pushing.cancel()
        await asyncio.wait({pushing})


async def _push(steps: AsyncGenerator[list[TokenDelta], None], stream: RequestStream) -> None:
    async with aclosing(steps):
        try:
            async for deltas in steps:
                stream.push(deltas)
        except AtomeshError as error:
            stream.fail(error)
        except Exception:
            stream.fail(EngineError("the script is broken"))
            raise
