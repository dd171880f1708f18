import msgspec
import pytest

from atomesh.protocol.ticket import Ticket, is_genuine, sign

TICKET = Ticket(
    ticket_id=b"t" * 16, gateway="g", serial=1, request_id="r", prefill="p", decode="d", ttl_s=30.0
)  # fmt: skip
CHANGES = {
    "ticket_id": b"u" * 16,
    "gateway": "h",
    "serial": 2,
    "request_id": "s",
    "prefill": "d",
    "decode": "p",
    "ttl_s": 60.0,
    "mac": b"m" * 32,
}


def test_a_signed_ticket_is_genuine_for_its_secret_only():
    assert is_genuine(b"secret", sign(b"secret", TICKET))
    assert not is_genuine(b"other", sign(b"secret", TICKET))
    assert not is_genuine(b"secret", TICKET)


@pytest.mark.parametrize("field", CHANGES)
def test_no_field_can_be_changed(field):
    forged = msgspec.structs.replace(sign(b"secret", TICKET), **{field: CHANGES[field]})
    assert not is_genuine(b"secret", forged)


def test_bytes_cannot_be_shifted_from_one_field_to_the_next():
    shifted = msgspec.structs.replace(TICKET, gateway="gr", request_id="")
    assert sign(b"secret", shifted).mac != sign(b"secret", TICKET).mac


def test_an_id_of_another_size_is_not_genuine():
    short = msgspec.structs.replace(TICKET, ticket_id=b"t")
    assert not is_genuine(b"secret", sign(b"secret", short))
