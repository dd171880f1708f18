"""One generating request on its way: what is known of it, its deadline, and how its answer goes out."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Send

from atomesh.errors import AtomeshError, DeadlineExceededError
from atomesh.frontend.context import Frontend
from atomesh.frontend.generation import Delivery, Generation, StepPieces, merge
from atomesh.frontend.http.direct_body import DirectBody
from atomesh.frontend.http.error_answers import INTERNAL
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.http.server_timing import ServerTiming
from atomesh.frontend.http.sse import EventStream
from atomesh.frontend.metering import Metering
from atomesh.frontend.openai.delivery import CollectedDelivery, StreamedDelivery
from atomesh.frontend.openai.renderer import Renderer, WholeChoice
from atomesh.frontend.recording import note_answer, note_plan
from atomesh.frontend.served_model import ServedModel
from atomesh.observability.request_record import RequestRecord

POLICY_HEADER = "x-placement-policy"


@dataclass(frozen=True, slots=True)
class Call:
    """`received_at` is on the frontend's clock; `deadline_at` on the event loop's, None for no deadline.

    `find_model` is Frontend.find_model among the models that this request sees. What is kept
    of the answer is the `owner`'s. What goes on without the call, goes on inside `counted`.
    """

    headers: Headers
    send: Send
    received_at: float
    timeout_s: float | None
    deadline_at: float | None
    find_model: Callable[[str | None], ServedModel]
    record: RequestRecord
    direct: DirectBody
    owner: str = ""
    counted: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def policy(self) -> str:
        """The placement policy that the client asks for, "" for none."""
        return self.headers.get(POLICY_HEADER, "")


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a validated request needs to be answered."""

    model: ServedModel
    generations: Sequence[Generation]
    renderer: Renderer
    is_streamed: bool


@asynccontextmanager
async def deadline(call: Call) -> AsyncIterator[None]:
    """Raises DeadlineExceededError, and cancels what is inside, at the call's deadline."""
    if call.deadline_at is None:
        yield
        return
    try:
        async with asyncio.timeout_at(call.deadline_at) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceededError(
            f"the answer was not complete within x-request-timeout, {call.timeout_s:g} s; allow more time"
        ) from None


class Answering:
    """Drives a plan's generations to the client, streamed or whole."""

    def __init__(self, frontend: Frontend, call: Call, plan: Plan) -> None:
        self._frontend = frontend
        self._call = call
        self._plan = plan
        self._timing = ServerTiming(frontend.clock, plan.generations)
        self._metrics = frontend.metrics.for_model(plan.model.name)
        self._metering = Metering(self._metrics, frontend.clock, call.received_at, plan.generations)

    async def run(self) -> None:
        plan, record = self._plan, self._call.record
        note_plan(record, plan.model.name, plan.generations, is_streamed=plan.is_streamed)
        try:
            with self._metrics.in_flight.track_inprogress():
                await (self._stream() if plan.is_streamed else self._answer_whole())
        finally:
            note_answer(record, plan.generations)

    async def _stream(self) -> None:
        options = self._frontend.options
        events = EventStream(self._call.send, self._timing.headers, self._call.direct)
        renderer = self._plan.renderer
        try:
            async with (
                self._metering.until_end(),
                events.kept_alive(options.hold_s, options.keep_alive_s),
                deadline(self._call),
                aclosing(self._steps(StreamedDelivery(events, renderer, self._metering))) as steps,
            ):
                async for step in steps:
                    self._timing.saw_step()
                    if frames := renderer.frames(step):
                        await events.write(frames)
                    self._metering.wrote(step)
        except AtomeshError as error:
            await self._fail(events, error)
        except Exception:
            await self._fail(events, AtomeshError(INTERNAL))
            raise
        else:
            await events.finish(renderer.last_frames(self._explanation()) + renderer.ending)

    def _explanation(self) -> dict[str, Any]:
        if self._call.headers.get("x-explain") != "1":
            return {}
        ids = [generation.request.request_id for generation in self._plan.generations]
        return self._timing.explanation() | self._frontend.options.explain(ids)

    async def _fail(self, events: EventStream, error: AtomeshError) -> None:
        self._call.record.error_type = error.type
        if events.is_started:
            self._frontend.metrics.cut_streams.inc()
        await events.fail(error, self._plan.renderer.failure(error))

    async def _answer_whole(self) -> None:
        choices = [[WholeChoice() for _ in range(g.request.n)] for g in self._plan.generations]
        collected = CollectedDelivery(choices, self._timing, self._metering)
        async with (
            self._metering.until_end(),
            deadline(self._call),
            aclosing(self._steps(collected)) as steps,
        ):
            async for step in steps:
                collected.deliver(step)
        await self._send_json(encode_json(self._plan.renderer.whole(choices) | self._explanation()))

    def _steps(self, delivery: Delivery) -> AsyncGenerator[StepPieces, None]:
        """What comes of several generations waits for its turn, and none of it may go ahead."""
        generations = self._plan.generations
        if len(generations) == 1:
            return generations[0].steps(delivery)
        return merge([generation.steps() for generation in generations])

    async def _send_json(self, body: bytes) -> None:
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *self._timing.headers(is_complete=True),
        ]
        await self._call.send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._call.send({"type": "http.response.body", "body": body})
