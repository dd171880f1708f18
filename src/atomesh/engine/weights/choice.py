"""From what the operator chose of the weights' type to how they are packed."""

import logging

import torch

from atomesh.engine.kernels.library import load_kernels
from atomesh.engine.kernels.packing_plan import PackingPlan
from atomesh.engine.options import EngineOptions, WeightsChoice
from atomesh.engine.weights.source import WeightSource
from atomesh.errors import ConfigurationError

log = logging.getLogger(__name__)


def check_weights(options: EngineOptions) -> None:
    """Raises ConfigurationError for a choice that its dtype or device contradicts."""
    if options.weights == "auto":
        return
    if options.device != "cpu":
        raise ConfigurationError(
            f"weights is {options.weights}, which is for device cpu; leave it at auto on {options.device}",
            param="weights",
        )
    if options.dtype == "float32":
        raise ConfigurationError(
            f"weights is {options.weights}, but dtype float32 means weights of float32; leave one of them at "
            "auto",
            param="weights",
        )


def packing_plan(choice: WeightsChoice, source: WeightSource) -> PackingPlan | None:
    """None where torch multiplies: by choice, or for want of kernels, by bfloat16 then, as the log says."""
    if choice == "auto":
        return None
    kernels = load_kernels()
    if kernels is None:
        log.warning("weights are held in bfloat16, not as %s, which takes the C++ kernels", choice)
        return None
    encodings = {name: source.encoding(name) for name in source.names()}
    return PackingPlan(kernels, torch.get_num_threads(), choice, encodings)
