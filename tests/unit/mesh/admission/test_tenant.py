import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.mesh.admission.tenant import ANONYMOUS, CLASS_BAND, Tenant

texts = st.text(max_size=6)
names = st.text("ab:12", min_size=1, max_size=4)


@given(names, texts, names, texts)
def test_salts_differ_between_tenants_and_between_a_tenants_own_salts(
    one: str, own: str, other: str, others_own: str
) -> None:
    is_same = (one, own) == (other, others_own)
    assert (Tenant(one).salt(own) == Tenant(other).salt(others_own)) == is_same


def test_without_prefixes_of_its_own_a_tenant_has_the_clients_salt_alone() -> None:
    assert Tenant("a", has_own_prefixes=False).salt("s") == ANONYMOUS.salt("s") == "s"
    assert ANONYMOUS.salt("") == ""
    assert Tenant("a").salt("") != ""


@pytest.mark.parametrize(
    ("models", "names", "may"),
    [
        (None, ("m",), True),
        (frozenset({"m"}), ("m", "alias"), True),
        (frozenset({"alias"}), ("m", "alias"), True),
        (frozenset({"other"}), ("m", "alias"), False),
        (frozenset(), ("m",), False),
    ],
)
def test_models_are_named_by_name_or_alias(
    models: "frozenset[str] | None", names: tuple[str, ...], may: bool
) -> None:
    assert Tenant("a", models=models).may_use(names) is may


def test_a_class_outranks_whatever_a_client_says() -> None:
    high, normal, low = (
        Tenant("a", priority_class="high"),
        Tenant("b"),
        Tenant("c", priority_class="low"),
    )
    assert high.engine_priority(2**63 - 1) < normal.engine_priority(-(2**63))
    assert normal.engine_priority(2**63 - 1) < low.engine_priority(-(2**63))
    assert normal.engine_priority(5) == 5
    assert low.engine_priority(0) == CLASS_BAND


def test_without_leave_a_clients_priority_counts_for_nothing_in_the_engine() -> None:
    assert Tenant("a", may_set_priority=False).engine_priority(-100) == 0
