"""Who is here: the requests that have not ended, and their sequences, each in the queue of its state."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atomesh.engine.core.admission import SequenceQueue
from atomesh.engine.core.request import RequestState, SequenceState, TokenSequence

if TYPE_CHECKING:
    from atomesh.engine.core.kv_cache_manager import KVCacheManager


class Roster:
    def __init__(self, kv: "KVCacheManager") -> None:
        self._kv = kv
        self.waiting = SequenceQueue()
        self.arriving = SequenceQueue()
        self.arrived = SequenceQueue()
        self.running = SequenceQueue()
        self._queues = {
            SequenceState.WAITING: self.waiting,
            SequenceState.ARRIVING: self.arriving,
            SequenceState.ARRIVED: self.arrived,
            SequenceState.RUNNING: self.running,
        }
        self._requests: dict[str, RequestState] = {}
        self._sequences: dict[int, TokenSequence] = {}
        self._num_arrivals = 0
        self._num_sequences = 0

    def __bool__(self) -> bool:
        return bool(self._requests)

    def request(self, request_id: str) -> RequestState | None:
        return self._requests.get(request_id)

    def sequence(self, sequence_id: int) -> TokenSequence | None:
        return self._sequences.get(sequence_id)

    def next_arrival(self) -> int:
        self._num_arrivals += 1
        return self._num_arrivals - 1

    def next_sequence_id(self) -> int:
        self._num_sequences += 1
        return self._num_sequences

    def enter(self, sequence: TokenSequence, state: SequenceState) -> None:
        """A new sequence, maybe of a new request."""
        self._requests[sequence.request.request.request_id] = sequence.request
        self._sequences[sequence.sequence_id] = sequence
        sequence.request.sequences[sequence.sequence_id] = sequence
        sequence.state = state
        self._queues[state].add(sequence)

    def move(self, sequence: TokenSequence, state: SequenceState) -> None:
        self._queues[sequence.state].remove(sequence)
        sequence.state = state
        self._queues[state].add(sequence)

    def send_to_wait(self, sequence: TokenSequence) -> None:
        """Take its blocks; what they held is computed again when there is room."""
        self._kv.release(sequence)
        if sequence.wants_prompt_logprobs:
            sequence.request.prompt_logprobs.clear()
        if sequence.kv_source is not None:
            sequence.kv_source = "recomputed"
        self.move(sequence, SequenceState.WAITING)

    def leave(self, sequence: TokenSequence) -> None:
        """The sequence has ended and lets its blocks go; with its last sequence a request ends too."""
        self._kv.release(sequence)
        self._queues[sequence.state].remove(sequence)
        sequence.state = SequenceState.FINISHED
        state = sequence.request
        del self._sequences[sequence.sequence_id], state.sequences[sequence.sequence_id]
        if not state.sequences:
            del self._requests[state.request.request_id]

    @property
    def num_idle(self) -> int:
        """Sequences that no step computes at present."""
        return len(self.waiting) + len(self.arriving) + len(self.arrived)

    @property
    def last_holder(self) -> TokenSequence:
        """The last in order of those that hold blocks to compute on."""
        candidates = [queue.last for queue in (self.running, self.arrived) if queue]
        return max(candidates, key=lambda sequence: sequence.order_key)

    def holds(self) -> Iterator[tuple[str, list[int]]]:
        """Owners, and the blocks that are held for them."""
        for sequence in self._sequences.values():
            yield f"request {sequence.request.request.request_id}", sequence.block_table

    @property
    def num_holds(self) -> int:
        """How many holds `holds` names; who waits has none."""
        queues = (self.running, self.arriving, self.arrived)
        return sum(len(sequence.block_table) for queue in queues for sequence in queue)

    def check_invariants(self) -> None:
        """Raises AssertionError if a sequence or request is lost, counted twice or in the wrong queue."""
        queued: dict[int, TokenSequence] = {}
        for state, queue in self._queues.items():
            queue.check_invariants()
            if not all(sequence.state is state and sequence.is_sound for sequence in queue):
                raise AssertionError(f"a sequence among the {state.name} is not in that state")
            queued.update((one.sequence_id, one) for one in queue)
        owned = {key: one for state in self._requests.values() for key, one in state.sequences.items()}
        num_queued = sum(map(len, self._queues.values()))
        if queued != self._sequences or owned != self._sequences or num_queued != len(queued):
            raise AssertionError("queues, requests and sequences disagree")
