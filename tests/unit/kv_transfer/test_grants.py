import pytest

from atomesh.kv_transfer.grants import GrantRefusal, Grants


@pytest.fixture
def grants() -> Grants:
    grants = Grants()
    grants.admit("p", b"g", {0: 10, 3: 13, 5: 15})
    return grants


def refusal(grants: Grants, peer: str, grant: bytes, indices: list[int]) -> GrantRefusal:
    with pytest.raises(GrantRefusal) as caught:
        grants.claim(peer, grant, indices)
    return caught.value


def test_blocks_come_in_the_order_of_their_indices(grants: Grants) -> None:
    assert grants.claim("p", b"g", [5, 0]) == [15, 10]
    assert grants.claim("p", b"g", [3]) == [13]


def test_an_index_is_claimed_once_unless_given_back(grants: Grants) -> None:
    grants.claim("p", b"g", [0, 3])
    assert not refusal(grants, "p", b"g", [3, 5]).damages
    grants.give_back(b"g", [3])
    assert grants.claim("p", b"g", [3, 5]) == [13, 15]


@pytest.mark.parametrize("indices", [[1], [0, 1], [0, 0]])
def test_what_was_not_granted_damages(grants: Grants, indices: list[int]) -> None:
    assert refusal(grants, "p", b"g", indices).damages
    assert grants.claim("p", b"g", [0]) == [10]


def test_strangers_do_not_damage_anothers_grant(grants: Grants) -> None:
    assert not refusal(grants, "q", b"g", [99]).damages


def test_void_cancelled_and_dropped_grants_are_unknown(grants: Grants) -> None:
    grants.admit("p", b"h", {0: 1})
    grants.admit("q", b"i", {0: 2})
    grants.void(b"g")
    grants.cancel(b"h")
    grants.drop_peer("q")
    for peer, grant in (("p", b"g"), ("p", b"h"), ("q", b"i")):
        assert "not known" in refusal(grants, peer, grant, [0]).reason


def test_what_is_gone_can_be_given_back_voided_and_cancelled(grants: Grants) -> None:
    grants.cancel(b"g")
    grants.give_back(b"g", [0])
    grants.void(b"g")
    grants.cancel(b"g")
    refusal(grants, "p", b"g", [0])
