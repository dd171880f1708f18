import pytest
import torch

from atomesh.engine.sampling.truncation import truncate, truncates
from atomesh.protocol.sampling import SamplingSpec


def spec(top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> SamplingSpec:
    return SamplingSpec(seed=0, max_tokens=1, top_k=top_k, top_p=top_p, min_p=min_p)


def kept(probabilities: torch.Tensor, **rules: float) -> list[int]:
    """Ids that stay; those that stay keep their probability, bit for bit."""
    after = probabilities.clone()
    truncate(after, spec(**rules))  # type: ignore[arg-type]
    ids: list[int] = after.nonzero().squeeze(1).tolist()
    assert after[ids].equal(probabilities[ids])
    return ids


def reference(probabilities: torch.Tensor, asked: SamplingSpec) -> list[int]:
    """The definition, in exact steps over the sorted whole."""
    pairs = sorted(enumerate(probabilities.tolist()), key=lambda pair: (-pair[1], pair[0]))
    floor = float(asked.min_p * probabilities.max())
    left = [(i, p) for i, p in pairs if p >= floor and p > 0.0]
    left = left[: asked.top_k or None]
    if asked.top_p < 1.0:
        whole, mass, size = sum(p for _, p in left), 0.0, 0
        while size < len(left) and mass < asked.top_p * whole:
            mass += left[size][1]
            size += 1
        left = left[:size]
    return sorted(i for i, _ in left)


DYADIC = torch.tensor([1, 8, 2, 4, 1], dtype=torch.float32) / 16


def test_nothing_is_asked_nothing_is_done() -> None:
    assert not truncates(spec())
    assert truncates(spec(top_k=1))
    assert truncates(spec(top_p=0.99))
    assert truncates(spec(min_p=0.01))


@pytest.mark.parametrize(
    ("rules", "ids"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 2, 3]),
        ({"top_k": 4}, [0, 1, 2, 3]),  # of the equals 0 and 4 the lower id
        ({"top_k": 50}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.5}, [1]),  # exactly reached
        ({"top_p": 0.5000001}, [1, 3]),
        ({"top_p": 0.75}, [1, 3]),
        ({"top_p": 0.9375}, [0, 1, 2, 3]),
        ({"top_p": 0.94}, [0, 1, 2, 3, 4]),
        ({"top_p": 1e-9}, [1]),
        ({"min_p": 0.25}, [1, 2, 3]),
        ({"min_p": 0.2500001}, [1, 3]),
        ({"min_p": 1.0}, [1]),
        ({"top_k": 2, "top_p": 0.67}, [1, 3]),  # 8/12 of what top_k left is not enough
        ({"top_k": 2, "top_p": 0.66}, [1]),
        ({"min_p": 0.2, "top_p": 0.86}, [1, 2, 3]),  # 12/14 is not enough
        ({"min_p": 0.2, "top_p": 0.85}, [1, 3]),
        ({"min_p": 0.5, "top_k": 3}, [1, 3]),
    ],
)
def test_small_examples(rules: dict[str, float], ids: list[int]) -> None:
    assert kept(DYADIC, **rules) == ids


@pytest.mark.parametrize("vocab", [3, 256, 1000, 5000, 12000])
@pytest.mark.parametrize("quantised", [False, True])
def test_equals_the_definition(vocab: int, quantised: bool) -> None:
    generator = torch.Generator().manual_seed(vocab)
    for top_k in (0, 1, 7, 40, 600):
        for top_p in (1.0, 0.95, 0.5, 0.05):
            for min_p in (0.0, 0.001, 0.3):
                if not truncates(spec(top_k, top_p, min_p)):
                    continue
                logits = torch.randn(vocab, generator=generator) * 3
                if quantised:  # many equals
                    logits = logits.round()
                probabilities = logits.softmax(-1)
                asked = spec(top_k, top_p, min_p)
                assert kept(probabilities, top_k=top_k, top_p=top_p, min_p=min_p) == reference(
                    probabilities, asked
                )


def test_equal_probabilities_keep_the_lowest_ids() -> None:
    flat = torch.full((1024,), 1 / 1024)
    assert kept(flat, top_k=10) == list(range(10))
    assert kept(flat, top_p=0.25) == list(range(256))
    assert kept(flat, min_p=1.0) == list(range(1024))


def test_a_top_k_above_the_vocabulary_keeps_all() -> None:
    assert kept(torch.full((300,), 1 / 300), top_k=2**31 - 1) == list(range(300))


def test_what_is_impossible_stays_so() -> None:
    assert kept(torch.tensor([0.0, 0.75, 0.0, 0.25]), top_k=3) == [1, 3]
