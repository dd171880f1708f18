"""SGLang over HTTP: POST /generate with token ids in and out, pairs that meet by a bootstrap room."""

from typing import Any

import msgspec

from atomesh.errors import EngineError, ServiceUnavailableError
from atomesh.mesh.backends.foreign_errors import NotServedError
from atomesh.mesh.backends.foreign_json import UnreadableError, decode_json
from atomesh.mesh.backends.hand_offs import HandOff
from atomesh.mesh.backends.http_backend import (
    DEFAULT_MODEL_LEN,
    LOST_S,
    HttpBackend,
    Introduction,
    facts_alone,
    foreign_layout,
    new_incarnation,
)
from atomesh.mesh.backends.prometheus_text import Readings, read_metrics
from atomesh.mesh.backends.sglang_wire import AnswerReader, generate_body, with_bootstrap
from atomesh.mesh.backends.streamed_answers import DeltaSink, Sink, together, until_done
from atomesh.mesh.backends.vllm_wire import continued
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, KVSource, Leg, PrefillLeg
from atomesh.protocol.worker import LoadReport, ModelDescription, WorkerDescription

PATH = "/generate"
LEAST_BLOCK = 16  # its own blocks are mostly of one token, which would make an index as long as all prompts


class _ServerInfo(msgspec.Struct, frozen=True):
    """Of GET /get_server_info; what is not there was not told."""

    model_path: str = ""
    served_model_name: str | None = None
    tokenizer_path: str | None = None
    context_length: int | None = None
    max_total_num_tokens: int | None = None
    max_running_requests: int | None = None
    page_size: int | None = None
    kv_cache_dtype: str | None = None


_server_info = msgspec.json.Decoder(_ServerInfo)


class SglangBackend(HttpBackend):
    _block_size = 1
    _num_blocks = 0

    async def introduce(self) -> Introduction:
        info = await self._info()
        served_models = await self.list_models()
        max_model_len = info.context_length or served_models[0].max_model_len
        found = await self.find_files(info.tokenizer_path or "", info.model_path)
        self._block_size = max(info.page_size or 1, LEAST_BLOCK)
        self._num_blocks = (info.max_total_num_tokens or 0) // self._block_size
        served = info.served_model_name or info.model_path
        name = found.name if served.startswith(("/", ".")) else served
        worker = WorkerDescription(
            worker_id=self.address,
            incarnation=new_incarnation(self.address, None),
            pid=0,
            role=self.spec.role,
            model=ModelDescription(
                name=name,
                path=found.path,
                architecture=found.architecture,
                dtype="sglang",
                vocab_size=found.vocab_size,
                max_model_len=max_model_len or DEFAULT_MODEL_LEN,
                eos_token_ids=found.eos_token_ids,
                block_size=self._block_size,
                num_blocks=self._num_blocks,
            ),
            kv_address=f"{self.spec.host}:{self.spec.bootstrap_port}",
            kv_layout=foreign_layout("sglang", name, info.page_size or 1, info.kv_cache_dtype or ""),
            max_num_seqs=info.max_running_requests or 0,
            engine="sglang",
            needs_peer=self.spec.role != "unified",
        )
        return Introduction(worker, await self.look())

    async def look(self) -> LoadReport:
        """Zeros where the server was started without --enable-metrics."""
        await self.client.get("/health", LOST_S)
        try:
            text = await self.client.get("/metrics", LOST_S)
        except NotServedError:
            return LoadReport()
        return self._report(read_metrics(text.decode("utf-8", "replace"), "sglang:"))

    async def compute(
        self, request: GenerationRequest, leg: Leg | None, stream: DeltaSink, hand_off: HandOff | None
    ) -> None:
        if hand_off is not None and leg is not None and leg.ticket is not None:
            room = int.from_bytes(leg.ticket.ticket_id[:8]) >> 2
            await self._half(request, leg, stream, room)
        elif self.spec.role != "unified":
            raise ServiceUnavailableError(
                "this engine serves nothing but its half of a pair, and no pair is ready; try again soon"
            )
        elif isinstance(leg, DecodeLeg):
            rests = [(choice, continued(request, choice, tokens)) for choice, tokens in leg.outputs.items()]
            await together(
                self._answer(generate_body(rest), AnswerReader(rest, choice), stream)
                for choice, rest in rests
            )
        else:
            await self._answer(generate_body(request), AnswerReader(request), stream)

    async def _half(
        self, request: GenerationRequest, leg: PrefillLeg | DecodeLeg, stream: DeltaSink, room: int
    ) -> None:
        if isinstance(leg, DecodeLeg):
            body = with_bootstrap(generate_body(request), leg.prefill_address or "", room)
            await self._answer(body, AnswerReader(request), stream, "transferred")
            return
        whole = {**generate_body(request), "stream": False}
        body = with_bootstrap(whole, f"{self.spec.host}:{self.spec.bootstrap_port}", room)
        async with self.client.ask("POST", PATH, msgspec.json.encode(body)) as answer:
            deltas = AnswerReader(request).read(await answer.whole())
        stream.push([facts_alone(request, deltas)])

    async def _answer(
        self,
        body: dict[str, Any],
        reader: AnswerReader,
        stream: DeltaSink,
        source: KVSource | None = None,
    ) -> None:
        sink = Sink(stream, source)
        async with self.client.ask("POST", PATH, msgspec.json.encode(body)) as answer:
            if body["stream"]:
                await until_done(answer, reader.read, sink, self.heard)
            else:
                sink.push(reader.read(await answer.whole()))

    async def _info(self) -> _ServerInfo:
        try:
            document = await self.client.get("/get_server_info", LOST_S)
        except NotServedError:  # as newer versions have it
            document = await self.client.get("/server_info", LOST_S)
        try:
            return decode_json(document, _server_info)
        except UnreadableError:
            raise EngineError("its server info is not what SGLang says; is it another server?") from None

    def _report(self, readings: Readings) -> LoadReport:
        used = round(self._num_blocks * readings.share("sglang:token_usage"))
        return LoadReport(
            running=readings.count("sglang:num_running_reqs"),
            waiting=readings.count("sglang:num_queue_reqs"),
            free_blocks=self._num_blocks - used,
            total_blocks=self._num_blocks,
            held_blocks=used,
            prompt_tokens=readings.count("sglang:prompt_tokens"),
            generation_tokens=readings.count("sglang:generation_tokens"),
        )
