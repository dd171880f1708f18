"""Work that looks at what others say: whatever it meets there is logged, and it begins anew."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


async def tirelessly(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Until `work` returns or is cancelled. The pause doubles while it fails soon after it began.

    A traceback is logged where the error is of another kind than the last one, else a line.
    """
    loop = asyncio.get_running_loop()
    pause_s = FIRST_PAUSE_S
    last: type[Exception] | None = None
    while True:
        began = loop.time()
        try:
            await work()
            return
        except Exception as error:  # noqa: BLE001  what one member says must not end the others' service
            if loop.time() - began > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            is_new, last = type(error) is not last, type(error)
            _log.error(
                "%s failed, and is tried again in %g s: %s: %.300s",
                what,
                pause_s,
                type(error).__name__,
                error,
                exc_info=error if is_new else None,
            )
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
