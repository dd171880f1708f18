"""On the PYTHONPATH of a vLLM server: NIXL's progress thread looks every millisecond, not without a pause.

NIXL has an option for it, which its Python side sets to 0; each server would take a whole core while idle.
Without the thread an idle prefill server never answers the decode server that wants to connect to it.
"""

import os
from typing import Any

PAUSE_US = 1000

os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")  # as vLLM sets it before it imports NIXL

try:
    from nixl_cu12 import _bindings
except ImportError:
    pass
else:

    class _Paused(_bindings.nixlAgentConfig):  # type: ignore[misc]  a class of C++
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, PAUSE_US if name == "pthrDelay" else value)

    _bindings.nixlAgentConfig = _Paused
