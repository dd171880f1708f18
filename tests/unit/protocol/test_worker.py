import msgspec
import pytest

from atomesh.protocol.kv_layout import KVLayout, difference
from atomesh.protocol.worker import PRESETS, RoleWeights, nearest_role

LAYOUT = KVLayout(
    name="rows", model="m", weights="w", dtype="float32", block_size=32, num_layers=2, num_kv_heads=2,
    head_dim=8, block_bytes=8192,
)  # fmt: skip


def test_equal_layouts_may_share_kv():
    assert difference(LAYOUT, LAYOUT) is None


@pytest.mark.parametrize("field", KVLayout.__struct_fields__)
def test_any_difference_is_named_with_both_values(field):
    here = getattr(LAYOUT, field)
    there = "other" if isinstance(here, str) else here + 1
    words = difference(LAYOUT, msgspec.structs.replace(LAYOUT, **{field: there}))
    assert words == f"{field} is {here!r} here and {there!r} there"


@pytest.mark.parametrize("role", PRESETS)
def test_a_preset_is_nearest_to_itself(role):
    assert nearest_role(PRESETS[role]) == role


def test_weights_between_presets_go_to_the_nearest():
    assert nearest_role(RoleWeights(prefill=0.9, decode=0.1)) == "prefill"
    assert nearest_role(RoleWeights(prefill=0.2, decode=1.0)) == "decode"
    assert nearest_role(RoleWeights(prefill=0.8, decode=0.9)) == "unified"


@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 1000.0])
def test_what_a_role_is_does_not_depend_on_how_much_is_offered(scale):
    assert nearest_role(RoleWeights(prefill=scale, decode=0.0)) == "prefill"
    assert nearest_role(RoleWeights(prefill=0.0, decode=scale)) == "decode"
    assert nearest_role(RoleWeights(prefill=scale, decode=scale)) == "unified"
    assert nearest_role(RoleWeights(prefill=0.4 * scale, decode=scale)) == "decode"


def test_only_what_is_offered_nothing_is_parked():
    assert nearest_role(RoleWeights(prefill=0.0, decode=0.0)) == "parked"
    assert nearest_role(RoleWeights(prefill=1e-9, decode=0.0)) == "prefill"
