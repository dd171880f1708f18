from atomesh.protocol.handshake import NONCE_BYTES, is_valid_proof, proof

NONCE = bytes(range(NONCE_BYTES))


def test_a_proof_holds_for_its_secret_its_side_and_its_nonce_only():
    good = proof(b"secret", "gateway", NONCE)
    assert is_valid_proof(b"secret", "gateway", NONCE, good)
    assert not is_valid_proof(b"Secret", "gateway", NONCE, good)
    assert not is_valid_proof(b"secret", "worker", NONCE, good)
    assert not is_valid_proof(b"secret", "gateway", NONCE[::-1], good)
    assert not is_valid_proof(b"secret", "gateway", NONCE, good[:-1])


def test_a_nonce_of_another_size_proves_nothing():
    assert not is_valid_proof(b"secret", "gateway", b"short", proof(b"secret", "gateway", b"short"))
