import pytest

from atomesh.engine.registrar import MAX_TOLD_BYTES, _message_in


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error": {"message": "the proof is wrong", "type": "permission_denied"}}', "the proof is wrong"),
        (b'{"error": "no"}', '{"error": "no"}'),
        (b"<html>\xff</html>", "<html>\ufffd</html>"),
        (b"x" * 1000, "x" * MAX_TOLD_BYTES),
    ],
)
def test_what_a_gateway_refuses_with_is_told_in_its_words(body: bytes, says: str) -> None:
    assert _message_in(body) == says
