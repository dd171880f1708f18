"""Tokenizers of directories and GGUF files against transformers' reading of the same tokenizer.json."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from atomesh.errors import InvalidRequestError
from atomesh.frontend.text.tokenizer import Tokenizer, load_tokenizer
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.testing.tiny_model import write_tiny_gguf, write_tiny_model

KINDS = ("bytes", "sentencepiece")
PARTS = ["the ", "of", " ", "  ", "\n", "\t", "12", "é", "e\u0301", "日本", "👍🏽", "▁", "<s>", "<|im_end|>"]
TEXTS = st.text(max_size=30) | st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


class Tiny:
    """One tiny tokenizer read three ways: ours from the directory and from GGUF, and transformers'."""

    def __init__(self, folder: Path, kind: str) -> None:
        directory = write_tiny_model(folder / kind, tokenizer=kind)
        gguf = write_tiny_gguf(folder / f"{kind}.gguf", tokenizer=kind)
        self.directory = load_tokenizer(open_checkpoint(directory))
        self.gguf = load_tokenizer(open_checkpoint(gguf))
        self.reference = PreTrainedTokenizerFast(
            tokenizer_file=str(directory / "tokenizer.json"),
            **json.loads((directory / "tokenizer_config.json").read_text()),
        )


@pytest.fixture(scope="module")
def tinies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tiny]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: Tiny(folder, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def plain(tinies: dict[str, Tiny]) -> Tokenizer:
    return tinies["bytes"].directory


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_ids_are_those_of_transformers(tinies: dict[str, Tiny], kind: str, text: str) -> None:
    tiny = tinies[kind]
    expected = tiny.reference.encode(text, add_special_tokens=False)
    assert tiny.directory.encode(text, add_special_tokens=False) == expected
    assert tiny.gguf.encode(text, add_special_tokens=False) == expected


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_valid_text_decodes_as_in_transformers(tinies: dict[str, Tiny], kind: str, text: str) -> None:
    tiny = tinies[kind]
    ids = tiny.reference.encode(text, add_special_tokens=False)
    for skip in (False, True):
        expected = tiny.reference.decode(ids, skip_special_tokens=skip)
        assert tiny.directory.decode(ids, skip_special_tokens=skip) == expected
        assert tiny.gguf.decode(ids, skip_special_tokens=skip) == expected


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_special_text_may_be_plain(tinies: dict[str, Tiny], kind: str, text: str) -> None:
    for tokenizer in (tinies[kind].directory, tinies[kind].gguf):
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert not any(map(tokenizer.is_special, ids))
        if not any(name in text for name in tokenizer.special_tokens):
            assert ids == tokenizer.encode(text, add_special_tokens=False)


def test_the_vocabulary_is_described(plain: Tokenizer) -> None:
    assert plain.vocab_size == 384
    assert plain.special_tokens == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    assert (plain.bos_token_id, plain.eos_token_ids) == (1, (2,))
    assert plain.named_tokens["eos_token"] == "<|im_end|>"
    assert [i for i in range(384) if plain.is_special(i)] == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_added_where_the_model_wants_them(tinies: dict[str, Tiny], kind: str) -> None:
    bare = tinies[kind].gguf.encode("the", add_special_tokens=False)
    whole = tinies[kind].gguf.encode("the")
    assert whole == ([1, *bare] if kind == "sentencepiece" else bare)
    assert tinies[kind].gguf.encode("the", parse_special=False) == whole


def test_each_token_has_its_bytes(tinies: dict[str, Tiny]) -> None:
    for kind, token in (("bytes", "Ġthe"), ("sentencepiece", "▁the")):
        reference = tinies[kind].reference
        for tokenizer in (tinies[kind].directory, tinies[kind].gguf):
            assert tokenizer.token_bytes(reference.convert_tokens_to_ids(token)) == b" the"
            assert b"".join(
                map(tokenizer.token_bytes, reference.encode("日", add_special_tokens=False))
            ).endswith("日".encode())
            assert tokenizer.token_bytes(-1) == tokenizer.token_bytes(10**9) == b""


def test_masked_characters_never_join_a_special_token(plain: Tokenizer) -> None:
    mask = {0xDC00: "|"}
    text = "<|im_start|>user <\udc00im_end\udc00><|im_end|>"
    inner = plain.encode("user <|im_end|>", add_special_tokens=False, parse_special=False)
    assert plain.encode_masked(text, mask) == [1, *inner, 2]
    assert plain.encode_masked("a<|im_end|>", mask) == plain.encode("a<|im_end|>")


def test_text_that_is_not_unicode_is_refused(plain: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="lone surrogate at character 2"):
        plain.encode("ab\ud800")
