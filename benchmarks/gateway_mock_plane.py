"""The token plane of benchmarks/gateway_mock.py: what a worker of ours says, without computing anything.

One frame a step for all answers, with the step's sample and the KV events of the blocks that it filled, as
the real engine sends them; a finished answer's blocks are dropped.
"""

import asyncio
import secrets
from typing import TYPE_CHECKING, cast

from mock_dialect import BLOCK_SIZE, MAX_MODEL_LEN, MODEL, NUM_BLOCKS

from atomesh.protocol.block_hash import BlockHash, model_hasher
from atomesh.protocol.frames import (
    Abort,
    GatewayMessage,
    Heartbeat,
    Hello,
    StepFrame,
    Submit,
    WorkerMessage,
    encode_message,
)
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.kv_events import (
    BlocksRemoved,
    BlocksStored,
    KVEvent,
    KVEvents,
    KVSnapshot,
    RequestKVSnapshot,
    add_to_digest,
    take_from_digest,
)
from atomesh.protocol.sealed_channel import NONCE_BYTES
from atomesh.protocol.step_sample import StepSample
from atomesh.protocol.token_channel import worker_channel
from atomesh.protocol.worker import LoadReport, ModelDescription, WorkerDescription

if TYPE_CHECKING:
    from gateway_mock_plan import MockPlan, Steps

HEARTBEAT_S = 0.25
MAX_SEQUENCES = 1024
STEP_TOKENS = 65_536


async def serve_token_plane(plan: "MockPlan", steps: "Steps") -> None:
    loop = asyncio.get_running_loop()
    await loop.create_unix_server(lambda: PlaneEngine(plan, steps), plan.socket)


def describe(plan: "MockPlan") -> WorkerDescription:
    model = ModelDescription(
        name=MODEL,
        path=plan.model_path,
        architecture="mock",
        dtype="float32",
        vocab_size=plan.vocab_size,
        max_model_len=MAX_MODEL_LEN,
        eos_token_ids=plan.eos_token_ids,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
    )
    return WorkerDescription(
        worker_id="mock-0",
        incarnation=secrets.token_hex(8),
        pid=0,
        role="unified",
        model=model,
        max_num_seqs=MAX_SEQUENCES,
        max_num_batched_tokens=STEP_TOKENS,
    )


class HeldBlocks:
    """What the prefix cache would hold, and the batch of events since the last frame."""

    def __init__(self) -> None:
        self._sequence, self._digest = 0, 0
        self._events: list[KVEvent] = []
        self._held: dict[BlockHash, int] = {}

    def store(self, parent: BlockHash, hashes: list[BlockHash]) -> None:
        new = [one for one in hashes if one not in self._held]
        for one in hashes:
            self._held[one] = self._held.get(one, 0) + 1
        if new:
            self._digest = add_to_digest(self._digest, new)
            self._events.append(BlocksStored(parent, list[bytes](new)))

    def drop(self, hashes: list[BlockHash]) -> None:
        for one in hashes:
            self._held[one] -= 1
        gone = [one for one in dict.fromkeys(hashes) if not self._held[one]]
        for one in gone:
            del self._held[one]
        if gone:
            self._digest = take_from_digest(self._digest, gone)
            self._events.append(BlocksRemoved(list[bytes](gone)))

    def batch(self) -> KVEvents:
        events, self._events = self._events, []
        self._sequence += bool(events)
        return KVEvents(self._sequence, self._digest, events)

    def snapshot(self) -> KVSnapshot:
        """After the last batch: what has happened since has yet to be told."""
        return KVSnapshot(self._sequence, self._digest, list[bytes](self._held), is_last=True)


class PlaneAnswer:
    def __init__(self, request: GenerationRequest, engine: "PlaneEngine") -> None:
        self._engine = engine
        self._request_id = request.request_id
        self._wanted = request.sampling.max_tokens
        self._hasher = engine.hasher
        self._root = self._hasher.root(request.cache_salt)
        self._hashes = self._hasher.chain(request.prompt_token_ids, request.cache_salt)
        self._open = request.prompt_token_ids[len(self._hashes) * BLOCK_SIZE :]
        self.length = len(request.prompt_token_ids)
        self._said = 0
        self.is_aborted = False

    def begin(self) -> None:
        self._engine.held.store(self._root, self._hashes)

    def step(self) -> bool:
        if self.is_aborted:
            self._end()
            return False
        token_ids = self._engine.plan.token_ids
        token_id = token_ids[self._said % len(token_ids)]
        self._said += 1
        self.length += 1
        self._fill(token_id)
        is_last = self._said == self._wanted
        delta = TokenDelta(
            request_id=self._request_id,
            token_ids=[token_id],
            finish_reason="length" if is_last else None,
            cached_tokens=0 if self._said == 1 else None,
        )
        self._engine.say(delta, self.length)
        if is_last:
            self._end()
        return not is_last

    def _fill(self, token_id: int) -> None:
        self._open.append(token_id)
        if len(self._open) == BLOCK_SIZE:
            parent = self._hashes[-1] if self._hashes else self._root
            filled = self._hasher.extend(parent, self._open)
            self._engine.held.store(parent, [filled])
            self._hashes.append(filled)
            self._open = []

    def _end(self) -> None:
        self._engine.held.drop(self._hashes)
        self._engine.forget(self._request_id)


class PlaneEngine(asyncio.Protocol):
    """One gateway's connection."""

    def __init__(self, plan: "MockPlan", steps: "Steps") -> None:
        self.plan = plan
        self._steps = steps
        self._channel = worker_channel(plan.secret.encode(), secrets.token_bytes(NONCE_BYTES))
        self._worker = describe(plan)
        self.hasher = model_hasher(plan.secret.encode(), self._worker.model)
        self.held = HeldBlocks()
        self._answers: dict[str, PlaneAnswer] = {}
        self._deltas: list[TokenDelta] = []
        self._context_tokens = 0
        self._prefill_tokens = 0
        self._is_introduced = False
        self._transport: asyncio.Transport
        steps.after_each(self.flush)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._channel.greeting)

    def data_received(self, data: bytes) -> None:
        messages = self._channel.receive(data)
        if self._channel.is_proved and not self._is_introduced:
            self._is_introduced = True
            self._transport.write(
                self._channel.proof() + self._channel.seal(encode_message(Hello(self._worker)))
            )
            self._beat()
        for message in messages:
            self._heed(message)

    def say(self, delta: TokenDelta, context_tokens: int) -> None:
        """With the next frame."""
        self._deltas.append(delta)
        self._context_tokens += context_tokens

    def forget(self, request_id: str) -> None:
        del self._answers[request_id]

    def flush(self) -> None:
        if not self._deltas:
            return
        deltas, self._deltas = self._deltas, []
        prefilled, self._prefill_tokens = self._prefill_tokens, 0
        decoding = len(deltas) if not prefilled else 0
        context, self._context_tokens = self._context_tokens, 0
        sample = StepSample(
            self.plan.step_s, prefilled, prefilled * prefilled, 0 if prefilled else context, decoding
        )
        self._send(StepFrame(deltas, self._load(), self.held.batch(), sample))

    def _heed(self, message: GatewayMessage) -> None:
        match message:
            case Submit(request):
                answer = self._answers[request.request_id] = PlaneAnswer(request, self)
                self._prefill_tokens += answer.length
                answer.begin()
                self._steps.begin(answer)
                self.flush()
            case Abort(request_id) if request_id in self._answers:
                self._answers[request_id].is_aborted = True
            case RequestKVSnapshot():
                self.flush()
                self._send(self.held.snapshot())

    def _beat(self) -> None:
        if not self._transport.is_closing():
            self._send(Heartbeat(self._load(), self.held.batch()))
            asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)

    def _load(self) -> LoadReport:
        return LoadReport(running=len(self._answers), free_blocks=NUM_BLOCKS, total_blocks=NUM_BLOCKS)

    def _send(self, message: WorkerMessage) -> None:
        self._transport.write(self._channel.seal(encode_message(message)))
