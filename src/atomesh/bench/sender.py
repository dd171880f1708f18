"""From a planned request to its record, by way of a server."""

from dataclasses import dataclass, field

from atomesh.bench.completion_stream import Completion
from atomesh.bench.dialect import Call, Dialect, Endpoint, payload, without_refused
from atomesh.bench.failures import RequestFailed
from atomesh.bench.openai_client import OpenAIClient
from atomesh.bench.prompts import PromptWriter
from atomesh.bench.record import Failure, RequestRecord
from atomesh.bench.workload import PlannedRequest
from atomesh.clock import Clock

PATHS: dict[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class Sender:
    """`timeout_s` bounds a request from its first byte sent to its last received; None waits for ever."""

    client: OpenAIClient
    clock: Clock
    writer: PromptWriter
    model: str
    endpoint: Endpoint = "completions"
    dialect: Dialect = field(default_factory=Dialect)
    temperature: float | None = 0.0
    ignore_eos: bool = True
    timeout_s: float | None = None

    async def send(self, request: PlannedRequest, due_s: float) -> RequestRecord:
        """Never raises for a failure of the request: the record holds it."""
        body = self._body(request, self.dialect)
        started = self.clock.now()
        completion = failure = None
        try:
            completion = await self._complete(body)
        except RequestFailed as error:
            failure = Failure(error.kind, error.message)
        return RequestRecord(due_s, started, self.clock.now(), request.input_tokens, completion, failure)

    async def find_dialect(self, request: PlannedRequest) -> Dialect:
        """The most that the server lets us ask for, found by sending `request`.

        Raises RequestFailed if nothing works.
        """
        dialect = self.dialect
        while True:
            try:
                await self._complete(self._body(request, dialect))
            except RequestFailed as error:
                fewer = without_refused(dialect, error)
                if fewer is None:
                    raise
                dialect = fewer
            else:
                return dialect

    async def _complete(self, body: dict[str, object]) -> Completion:
        return await self.client.complete(PATHS[self.endpoint], body, timeout_s=self.timeout_s)

    def _body(self, request: PlannedRequest, dialect: Dialect) -> dict[str, object]:
        call = Call(
            model=self.model,
            prompt=self.writer.write(request.segments),
            output_tokens=request.output_tokens,
            temperature=self.temperature,
            ignore_eos=self.ignore_eos,
        )
        return payload(call, self.endpoint, dialect)
