"""The memory of all KV blocks of an engine."""

import ctypes
import math
import threading

import torch

from atomesh.engine.attention.paged_kv import PagedKV
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.model_files.config import ModelConfig

SLICE_BYTES = 32 * 2**20
MADV_POPULATE_WRITE = 23  # Linux 5.14; elsewhere pages come with their first use
PAUSE_S = 0.02


class KVPool:
    """`storage` [num_blocks, layers, 2, kv_heads, block_size, head_dim], zero at first.

    `memory` is the same bytes, one block after the other, for the KV transport; None on a device of its own.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (config.num_layers, 2, config.num_kv_heads, block_size, config.head_dim)
        self.memory: PoolMemory | None = None
        if device.type == "cpu":
            self.memory = PoolMemory(num_blocks, math.prod(shape) * dtype.itemsize)
            self.storage = torch.frombuffer(self.memory.view, dtype=dtype).view(num_blocks, *shape)
        else:
            self.storage = torch.zeros((num_blocks, *shape), dtype=dtype, device=device)
        self.paged = PagedKV(self.storage)
        self._closed = threading.Event()
        self._toucher: threading.Thread | None = None

    def touch_in_background(self) -> None:
        """Have the kernel back every page, contents untouched, so that no step waits for it later."""
        if self.storage.device.type != "cpu" or self._toucher is not None:
            return
        self._toucher = threading.Thread(target=self._touch, name="kv-pool-touch", daemon=True)
        self._toucher.start()

    def close(self) -> None:
        self._closed.set()
        if self._toucher is not None:
            self._toucher.join()
        if self.memory is not None:
            self.memory.close()

    def _touch(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        page = 4096
        first = -(-self.storage.data_ptr() // page) * page
        end = self.storage.data_ptr() + self.storage.nbytes
        for start in range(first, end - page, SLICE_BYTES):
            length = min(SLICE_BYTES, end - start) // page * page
            if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), MADV_POPULATE_WRITE):
                return
            if self._closed.wait(PAUSE_S):
                return
