"""What an engine is made of, before it is known whether it has a KV plane."""

from collections.abc import Callable
from dataclasses import dataclass

from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.engine.executor import Executor
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.protocol.block_hash import BlockHasher, model_hasher
from atomesh.protocol.kv_layout import KVLayout
from atomesh.protocol.roofline import Roofline
from atomesh.protocol.worker import ModelDescription


@dataclass(frozen=True, slots=True)
class EngineParts:
    """`memory` holds the blocks that `executor` computes, where a transport can reach them; else None.

    `layout` reads all weights, for their digest. `warm_up` is for once the engine serves: it has the memory
    backed in the background, so that no step waits for pages.
    """

    description: ModelDescription
    limits: SchedulerConfig
    executor: Executor
    memory: PoolMemory | None
    layout: Callable[[], KVLayout]
    warm_up: Callable[[], None]
    roofline: Roofline

    def hasher(self, secret: bytes) -> BlockHasher:
        return model_hasher(secret, self.description)
