"""Put an engine together: device, weights, KV pool, scheduler."""

import logging

import torch

from atomesh.clock import Clock, MonotonicClock
from atomesh.engine.attention.registry import Attention, build_attention
from atomesh.engine.attention.shape import AttentionShape
from atomesh.engine.core.scheduler import Scheduler, SchedulerConfig
from atomesh.engine.engine import Engine
from atomesh.engine.execution.device import choose_device, choose_dtype, dtype_name
from atomesh.engine.execution.kv_pool import KVPool
from atomesh.engine.execution.kv_sizing import KVSize, block_bytes, context_limit, size_kv_pool
from atomesh.engine.execution.layout import kv_layout
from atomesh.engine.execution.local_executor import LocalExecutor
from atomesh.engine.execution.machine_speed import measure_speed
from atomesh.engine.execution.memory import free_memory
from atomesh.engine.execution.model_runner import ModelRunner
from atomesh.engine.execution.roofline import roofline
from atomesh.engine.layers.weight_slot import TensorFactory
from atomesh.engine.models.decoder import Decoder
from atomesh.engine.models.registry import build_model
from atomesh.engine.options import EngineOptions
from atomesh.engine.parts import EngineParts
from atomesh.engine.weights.choice import check_weights, packing_plan
from atomesh.engine.weights.digest import weights_digest
from atomesh.engine.weights.loader import load_weights
from atomesh.engine.weights.source import WeightSource
from atomesh.errors import ConfigurationError
from atomesh.model_files.checkpoint import Checkpoint
from atomesh.model_files.config import ModelConfig
from atomesh.protocol.worker import ModelDescription

log = logging.getLogger(__name__)


def build_engine(
    checkpoint: Checkpoint, options: EngineOptions, *, secret: bytes, served_name: str, clock: Clock
) -> Engine:
    """An engine on its own, without a KV plane; `secret` keys the block hashes. Raises as `build_parts`."""
    parts = build_parts(checkpoint, options, served_name)
    engine = Engine(Scheduler(parts.limits, parts.hasher(secret)), parts.executor, clock, parts.description)
    parts.warm_up()
    return engine


def build_parts(checkpoint: Checkpoint, options: EngineOptions, served_name: str) -> EngineParts:
    """Load the weights and take the KV pool.

    Raises ConfigurationError when the machine, the options and the model do not go together, and
    ModelFileError when the weights are not what their configuration says.
    """
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    config = checkpoint.config
    device = choose_device(options.device)
    check_weights(options)
    dtype = choose_dtype(options.dtype if options.weights == "auto" else "bfloat16", device)
    speed = measure_speed(dtype, device, MonotonicClock())  # before memory is taken
    source = WeightSource(checkpoint)  # first: it refuses sizes that the files do not bear out
    packing = packing_plan(options.weights, source)
    factory = TensorFactory(dtype, device, packing)
    model = build_model(config, factory)
    load_weights(model, source)
    size = _size(config, options, factory)
    pool = KVPool(config, size.num_blocks, options.block_size, factory.dtype, factory.device)
    attention = _attention(options, config, pool)
    description = ModelDescription(
        name=served_name,
        path=str(checkpoint.path),
        architecture=checkpoint.architecture,
        dtype=dtype_name(factory.dtype),
        vocab_size=config.vocab_size,
        max_model_len=size.max_model_len,
        eos_token_ids=config.eos_token_ids,
        block_size=options.block_size,
        num_blocks=size.num_blocks,
        kv_bytes=pool.storage.nbytes,
    )
    return EngineParts(
        description=description,
        limits=_limits(options, size),
        executor=_executor(model, config, pool, attention),
        memory=pool.memory,
        layout=lambda: kv_layout(
            config,
            description,
            weights_digest(checkpoint, None if packing is None else packing.choice),
            factory.dtype.itemsize,
        ),
        warm_up=pool.touch_in_background,
        roofline=roofline(config, factory.dtype.itemsize, speed),
    )


def _size(config: ModelConfig, options: EngineOptions, factory: TensorFactory) -> KVSize:
    limit = context_limit(config)
    bytes_per_block = block_bytes(config, options.block_size, factory.dtype.itemsize)
    size = size_kv_pool(options, limit, bytes_per_block, free_memory(factory.device))
    if options.max_model_len is None and size.max_model_len < limit:
        log.warning(
            "max_model_len is %d tokens, as many as the KV pool holds, not the model's %d; "
            "raise kv_memory (--kv-memory)",
            size.max_model_len,
            limit,
        )
    return size


def _limits(options: EngineOptions, size: KVSize) -> SchedulerConfig:
    budget = options.max_num_batched_tokens
    if not options.enable_chunked_prefill:
        budget = max(budget, size.max_model_len)
    return SchedulerConfig(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=size.max_model_len,
        block_size=options.block_size,
        num_blocks=size.num_blocks,
        policy=options.scheduling_policy,
        enable_prefix_cache=options.enable_prefix_cache,
        enable_chunked_prefill=options.enable_chunked_prefill,
    )


def _attention(options: EngineOptions, config: ModelConfig, pool: KVPool) -> Attention:
    try:
        return build_attention(options.attention, AttentionShape.of(config), pool.paged)
    except ConfigurationError:
        pool.close()
        raise


def _executor(model: Decoder, config: ModelConfig, pool: KVPool, attention: Attention) -> LocalExecutor:
    return LocalExecutor(ModelRunner(model, attention, pool.storage.device), pool, config.vocab_size)
