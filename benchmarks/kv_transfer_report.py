"""What benchmarks/kv_transfer.py found, and how it is shown."""

from dataclasses import asdict, dataclass
from typing import Any

from machine import Machine
from results_page import table

MEMCPY = "memcpy"


@dataclass(frozen=True, slots=True)
class TransferSpeed:
    """Median seconds to move `blocks` scattered blocks, `size` bytes together, by contestant."""

    blocks: int
    size: int
    seconds: dict[str, float]

    def rate(self, name: str) -> float:
        """Bytes a second."""
        return self.size / self.seconds[name]

    def share(self, name: str) -> float:
        """Of what one thread's memcpy of the same blocks reaches."""
        return self.seconds[MEMCPY] / self.seconds[name]


@dataclass(frozen=True, slots=True)
class AddedDelay:
    """Median seconds from the end of prefill to the arrival of the last block.

    `last_chunk_s` is what its blocks alone take while nothing else is going on.
    """

    transport: str
    chunks: int
    chunk_bytes: int
    chunkwise_s: float
    whole_s: float
    last_chunk_s: float


@dataclass(frozen=True, slots=True)
class Report:
    machine: Machine
    commit: str
    block_bytes: int
    rounds: int
    speeds: list[TransferSpeed]
    delays: list[AddedDelay]

    def as_json(self) -> dict[str, Any]:
        shares = [
            {"size": speed.size, **{name: speed.share(name) for name in speed.seconds}}
            for speed in self.speeds
        ]
        return {**asdict(self), "share_of_memcpy": shares}

    def as_markdown(self) -> str:
        return "\n\n".join([self._heading(), self._speed_table(), self._delay_table()])

    def _heading(self) -> str:
        return (
            f"## The KV transfer: blocks of {self.block_bytes:,} bytes\n\n"
            f"Commit {self.commit}; {self.machine}. Medians of {self.rounds} rounds, the contestants "
            "taking turns; sender and receiver are two processes, on a core each where there are two; pools "
            "touched before, blocks scattered on both sides, the receiver looks at every block it was sent. "
            "memcpy is one thread's copy of the same blocks between two pools of one process. A time runs "
            "from the call until the sender knows that all has arrived; tcp includes both sides' checksums."
        )

    def _speed_table(self) -> str:
        names = [name for name in self.speeds[0].seconds if name != MEMCPY]
        header = [
            "moved at once",
            "memcpy, GB/s",
            *(title for name in names for title in (f"{name}, GB/s", f"{name} / memcpy")),
            *(f"{name}, ms" for name in names),
        ]
        rows = [
            [
                f"{_count(speed.blocks)}, {speed.size / 1e6:.1f} MB",
                f"{speed.rate(MEMCPY) / 1e9:.2f}",
                *(
                    cell
                    for name in names
                    for cell in (f"{speed.rate(name) / 1e9:.2f}", f"{speed.share(name):.0%}")
                ),
                *(f"{speed.seconds[name] * 1e3:.2f}" for name in names),
            ]
            for speed in self.speeds
        ]
        return table(header, rows)

    def _delay_table(self) -> str:
        header = [
            "added to the TTFT",
            "chunk-wise, ms",
            "all at the end, ms",
            "last chunk alone, ms",
            "chunk-wise / alone",
        ]
        rows = [
            [
                f"{delay.transport}, {delay.chunks} chunks of {delay.chunk_bytes / 1e6:.1f} MB",
                *(f"{s * 1e3:.1f}" for s in (delay.chunkwise_s, delay.whole_s, delay.last_chunk_s)),
                f"{delay.chunkwise_s / delay.last_chunk_s:.2f}",
            ]
            for delay in self.delays
        ]
        return table(header, rows)


def _count(blocks: int) -> str:
    return "1 block" if blocks == 1 else f"{blocks} blocks"
