"""vLLM over HTTP: token ids in and out, so that text, stop strings and tools stay with our frontend."""

from typing import Any

import msgspec

from atomesh.errors import EngineError
from atomesh.mesh.backends.context import BackendContext, LocalModel
from atomesh.mesh.backends.hand_offs import HandOff
from atomesh.mesh.backends.http_backend import (
    DEFAULT_MODEL_LEN,
    LOST_S,
    HttpBackend,
    Introduction,
    ListedModel,
    facts_alone,
    foreign_layout,
    new_incarnation,
)
from atomesh.mesh.backends.prometheus_text import Readings, read_metrics, whole_number
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.backends.streamed_answers import DeltaSink, Sink, together, until_done
from atomesh.mesh.backends.vllm_wire import (
    AnswerReader,
    as_transfer,
    continued,
    decode_answer,
    prefill_body,
    unseen,
    whole_body,
)
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, KVSource, Leg, PrefillLeg
from atomesh.protocol.worker import LoadReport, ModelDescription, WorkerDescription

PATH = "/v1/completions"
STARTED = "process_start_time_seconds"
DEFAULT_BLOCK_SIZE = 16


class VllmBackend(HttpBackend):
    def __init__(self, spec: BackendSpec, context: BackendContext) -> None:
        super().__init__(spec, context)
        self._model = ""
        self._incarnation = ""

    async def introduce(self) -> Introduction:
        served = (await self.list_models())[0]
        readings = await self._readings()
        found = await self.find_files(served.root or "", served.id)
        self._model = served.id
        self._incarnation = new_incarnation(self.address, readings.totals.get(STARTED))
        return Introduction(self._describe(served, found, readings), _load(readings))

    async def look(self) -> LoadReport:
        await self.client.get("/health", LOST_S)
        readings = await self._readings()
        started = readings.totals.get(STARTED)
        if started is not None and new_incarnation(self.address, started) != self._incarnation:
            raise WorkerLostError
        return _load(readings)

    async def compute(
        self, request: GenerationRequest, leg: Leg | None, stream: DeltaSink, hand_off: HandOff | None
    ) -> None:
        if isinstance(leg, PrefillLeg) and hand_off is not None:
            await self._prefill(request, stream, hand_off)
        elif isinstance(leg, DecodeLeg) and hand_off is not None:
            await self._decode(request, leg, stream, hand_off)
        elif isinstance(leg, DecodeLeg):
            await self._continue(request, leg, stream)
        else:
            await self._answer(whole_body(request, self._model), AnswerReader(request), stream)

    async def _prefill(self, request: GenerationRequest, stream: DeltaSink, hand_off: HandOff) -> None:
        body = prefill_body(whole_body(request, self._model))
        async with self.client.ask("POST", PATH, msgspec.json.encode(body)) as answer:
            whole = await answer.whole()
        reader = AnswerReader(unseen(request))
        facts = [*reader.read(whole), *reader.end()]
        hand_off.give(decode_answer(whole).kv_transfer_params)
        stream.push([facts_alone(request, facts)])

    async def _decode(
        self, request: GenerationRequest, leg: DecodeLeg, stream: DeltaSink, hand_off: HandOff
    ) -> None:
        body = whole_body(request, self._model)
        params = await hand_off.params()
        if params is None and leg.on_failure == "fail":
            raise EngineError("the prefill engine has handed over nothing: does it have a KV connector?")
        if params is not None:
            body["kv_transfer_params"] = params
        source: KVSource = "recomputed" if params is None else "transferred"
        await self._answer(body, AnswerReader(request), stream, source)

    async def _continue(self, request: GenerationRequest, leg: DecodeLeg, stream: DeltaSink) -> None:
        """Each open choice as a request of its own."""
        rests = [(choice, continued(request, choice, tokens)) for choice, tokens in leg.outputs.items()]
        await together(
            self._answer(whole_body(rest, self._model), AnswerReader(rest, choice), stream)
            for choice, rest in rests
        )

    async def _answer(
        self,
        body: dict[str, Any],
        reader: AnswerReader,
        stream: DeltaSink,
        source: KVSource | None = None,
    ) -> None:
        sink = Sink(stream, source)
        async with self.client.ask("POST", PATH, msgspec.json.encode(body)) as answer:
            if not body["stream"]:
                sink.push([*reader.read(await answer.whole()), *reader.end()])
            elif await until_done(answer, reader.read, sink, self.heard):
                last = reader.end()
                sink.push(as_transfer(last) if source == "transferred" else last)

    async def _readings(self) -> Readings:
        return read_metrics((await self.client.get("/metrics", LOST_S)).decode("utf-8", "replace"), "vllm:")

    def _describe(self, served: ListedModel, found: LocalModel, readings: Readings) -> WorkerDescription:
        cache = readings.labels.get("vllm:cache_config_info", {})
        block_size = whole_number(cache.get("block_size")) or DEFAULT_BLOCK_SIZE
        name = found.name if served.id.startswith(("/", ".")) else served.id
        return WorkerDescription(
            worker_id=self.address,
            incarnation=self._incarnation,
            pid=0,
            role=self.spec.role,
            model=ModelDescription(
                name=name,
                path=found.path,
                architecture=found.architecture,
                dtype="vllm",
                vocab_size=found.vocab_size,
                max_model_len=served.max_model_len or DEFAULT_MODEL_LEN,
                eos_token_ids=found.eos_token_ids,
                block_size=block_size,
                num_blocks=whole_number(cache.get("num_gpu_blocks")) or 0,
            ),
            kv_address=self.address,
            kv_layout=foreign_layout("vllm", name, block_size, cache.get("cache_dtype", "")),
            engine="vllm",
        )


def _load(readings: Readings) -> LoadReport:
    cache = readings.labels.get("vllm:cache_config_info", {})
    total = whole_number(cache.get("num_gpu_blocks")) or 0
    used = round(total * readings.share("vllm:kv_cache_usage_perc"))
    return LoadReport(
        running=readings.count("vllm:num_requests_running"),
        waiting=readings.count("vllm:num_requests_waiting"),
        free_blocks=total - used,
        total_blocks=total,
        held_blocks=used,
        prefix_cache_queries=readings.count("vllm:prefix_cache_queries"),
        prefix_cache_hits=readings.count("vllm:prefix_cache_hits"),
        preemptions=readings.count("vllm:num_preemptions"),
        prompt_tokens=readings.count("vllm:prompt_tokens"),
        generation_tokens=readings.count("vllm:generation_tokens"),
    )
