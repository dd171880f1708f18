"""Fill a model's weights from its file, each tensor straight to its place."""

from collections.abc import Iterable
from typing import Protocol

from atomesh.engine.layers.weight_slot import Slot, TensorSource
from atomesh.errors import ModelFileError

UNUSED_SUFFIXES = (".rotary_emb.inv_freq",)  # written by old versions of transformers, computed by all
TIED_HEAD = "lm_head.weight"


class NamedSource(TensorSource, Protocol):
    def names(self) -> frozenset[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...


class SlottedModel(Protocol):
    def slots(self) -> Iterable[Slot]: ...


def load_weights(model: SlottedModel, source: NamedSource) -> None:
    """Raises ModelFileError, before anything is read, if a weight is missing, left over or of another shape.

    A left-over weight would mean that the file holds another architecture than its configuration says.
    """
    slots = list(model.slots())
    _check_names({slot.name for slot in slots}, source.names())
    for slot in slots:
        _check_shape(slot, tuple(source.shape(slot.name)))
    for slot in slots:
        slot.fill(source)


def _check_names(wanted: set[str], found: frozenset[str]) -> None:
    missing = sorted(wanted - found)
    if missing:
        raise ModelFileError(
            f"the model file lacks {_some(missing)}; its configuration asks for them: take a complete copy"
        )
    unused = sorted(
        name for name in found - wanted if name != TIED_HEAD and not name.endswith(UNUSED_SUFFIXES)
    )
    if unused:
        raise ModelFileError(
            f"the model file has {_some(unused)}, for which this architecture has no place: "
            "its configuration and its weights do not belong together"
        )


def _check_shape(slot: Slot, shape: tuple[int, ...]) -> None:
    if shape != slot.shape:
        raise ModelFileError(f"weight {slot.name} has shape {shape}; the configuration makes it {slot.shape}")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
