"""GGUF vocabularies: the ids of a trained SentencePiece model, the published splits, damaged files."""

import io
import time
from types import SimpleNamespace

import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from atomesh.errors import ModelFileError
from atomesh.frontend.text.gguf_pretokenizers import BYTE_PAIR_STYLES
from atomesh.frontend.text.gguf_tokenizer import gguf_named_tokens
from atomesh.frontend.text.token_bytes import byte_alphabet
from atomesh.frontend.text.tokenizer import Tokenizer, load_tokenizer
from atomesh.testing.tiny_corpus import CORPUS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
ALPHABET = list(byte_alphabet())


def load(metadata: dict[str, object]) -> Tokenizer:
    return load_tokenizer(SimpleNamespace(metadata=metadata, config=SimpleNamespace(eos_token_ids=())))


def byte_pairs(**changes: object) -> dict[str, object]:
    """A byte-level vocabulary: the bytes, "ab", " 1" and one special token."""
    tokens = [*ALPHABET, "ab", "Ġ1", "<|end|>"]
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*[NORMAL] * 258, CONTROL],
        "tokenizer.ggml.merges": ["a b", "Ġ 1"],
        "tokenizer.ggml.bos_token_id": 258,
        "tokenizer.ggml.eos_token_id": 258,
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


@pytest.fixture(scope="module")
def trained() -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        user_defined_symbols=["<think>"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def pieces(trained: sentencepiece.SentencePieceProcessor, **changes: object) -> dict[str, object]:
    def kind(piece: int) -> int:
        tests = {UNKNOWN: trained.IsUnknown, CONTROL: trained.IsControl, BYTE: trained.IsByte}
        special = next((code for code, test in tests.items() if test(piece)), NORMAL)
        return USER_DEFINED if trained.IdToPiece(piece) == "<think>" else special

    size = trained.GetPieceSize()
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [trained.IdToPiece(i) for i in range(size)],
        "tokenizer.ggml.scores": [trained.GetScore(i) for i in range(size)],
        "tokenizer.ggml.token_type": [kind(i) for i in range(size)],
        "tokenizer.ggml.bos_token_id": trained.bos_id(),
        "tokenizer.ggml.eos_token_id": trained.eos_id(),
        "tokenizer.ggml.unknown_token_id": trained.unk_id(),
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


WORDS = st.lists(
    st.sampled_from(["the", " ", "  ", "of", "é", "日", "👍", "\n", "1", "27", "self"]), max_size=15
)


@given(words=WORDS)
def test_a_trained_sentencepiece_model_gives_its_own_ids(trained, words: list[str]) -> None:
    text = "".join(words)
    ours = load(pieces(trained))
    assert ours.encode(text) == [trained.bos_id(), *trained.Encode(text)]
    assert ours.decode(trained.Encode(text)) == trained.Decode(trained.Encode(text)) == text


def test_user_defined_pieces_are_whole_but_not_special(trained) -> None:
    tokenizer = load(pieces(trained))
    think = trained.PieceToId("<think>")
    assert think in tokenizer.encode("a<think>b", parse_special=False)
    assert not tokenizer.is_special(think)
    assert tokenizer.special_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}


def test_text_cannot_spell_a_control_piece(trained) -> None:
    tokenizer = load(pieces(trained))
    assert tokenizer.encode("</s>", add_special_tokens=False) == [2]
    plain = tokenizer.encode("</s>", add_special_tokens=False, parse_special=False)
    assert 2 not in plain
    assert tokenizer.decode(plain) == "</s>"


def test_the_space_prefix_is_the_files_choice(trained) -> None:
    bare = load(pieces(trained, add_space_prefix=False, add_bos_token=False))
    spaced = load(pieces(trained, add_bos_token=False))
    assert spaced.encode("the") == bare.encode(" the")
    assert spaced.encode("the") != bare.encode("the")
    assert (spaced.decode(spaced.encode("the")), bare.decode(bare.encode(" the"))) == ("the", " the")


def test_gemma_ranks_merges_by_id_and_spells_runs_of_spaces_with_marks() -> None:
    tokens = ["<unk>", "▁", "a", "b", "c", "bc", "ab", "abc", "  ", "   "]
    metadata = {
        "general.architecture": "gemma3",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 10,
        "tokenizer.ggml.token_type": [UNKNOWN, *[NORMAL] * 7, USER_DEFINED, USER_DEFINED],
        "tokenizer.ggml.add_space_prefix": False,
    }
    tokenizer = load(metadata)
    assert tokenizer.encode("abb") == [6, 3]
    assert tokenizer.encode("abc") == [7]
    assert tokenizer.encode("abcc   a") == [7, 4, 9, 2]
    assert tokenizer.decode([9, 2]) == "   a"


def test_an_eot_token_also_ends_an_answer() -> None:
    tokenizer = load(byte_pairs(eot_token_id=257))
    assert tokenizer.eos_token_ids == (258, 257)


def test_named_tokens_are_read_by_id() -> None:
    assert gguf_named_tokens(byte_pairs()) == {"bos_token": "<|end|>", "eos_token": "<|end|>"}


@pytest.mark.parametrize(("pre", "adds_bos"), [("gpt-2", False), ("llama-bpe", True), ("qwen2", False)])
def test_bos_is_added_where_the_kind_or_the_file_says_so(pre: str, adds_bos: bool) -> None:
    assert load(byte_pairs(pre=pre)).encode("ab") == ([258, 256] if adds_bos else [256])
    assert load(byte_pairs(pre=pre, add_bos_token=not adds_bos)).encode("ab") == (
        [256] if adds_bos else [258, 256]
    )


def test_eos_is_added_where_the_file_says_so() -> None:
    assert load(byte_pairs(add_eos_token=True)).encode("ab") == [256, 258]


def words(pre: str, text: str) -> list[str]:
    splitter = tokenizers.Tokenizer.from_str(load(byte_pairs(pre=pre))._open.to_str()).pre_tokenizer
    alphabet = byte_alphabet()
    return [bytes(alphabet[c] for c in word).decode() for word, _ in splitter.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "I'll pay  1234!\n\nOK", ["I", "'ll", " pay", " ", " 1234", "!", "\n", "\n", "OK"]),
        ("smollm", "I'll pay 12½", ["I", "'ll", " pay", " ", "1", "2", "½"]),
        ("llama-bpe", "I'LL pay  12345!\n\nOK", ["I", "'LL", " pay", " ", " ", "123", "45", "!\n\n", "OK"]),
        ("qwen2", "I'LL pay 123", ["I", "'LL", " pay", " ", "1", "2", "3"]),
        ("tekken", "HelloWorld 12/\n", ["Hello", "World", " ", "1", "2", "/\n"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
    ],
)
def test_text_is_cut_as_published(pre: str, text: str, expected: list[str]) -> None:
    assert words(pre, text) == expected


@pytest.mark.parametrize("pre", sorted(BYTE_PAIR_STYLES))
def test_every_style_keeps_every_byte(pre: str) -> None:
    tokenizer = load(byte_pairs(pre=pre, add_bos_token=False))
    text = "ab 12\r\n\t é 日本 👍🏽 don't «x»\u2028\u00a0."
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_qwen_composes_characters() -> None:
    tokenizer = load(byte_pairs(pre="qwen2"))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "bert"}, "model is 'bert'; supported are 'gpt2'"),
        ({"pre": "martian"}, "pre is 'martian'; supported are"),
        ({"tokens": []}, "tokens has 0 entries"),
        ({"tokens": "abc"}, "tokens is not a list"),
        ({"tokens": [1, 2]}, "tokens is not a list"),
        ({"token_type": [1]}, "token_type has 1 entries"),
        ({"merges": ["a b c"]}, "merges has the entry 'a b c'"),
        ({"merges": ["a zz"]}, "definition is not valid"),
        ({"bos_token_id": 259}, r"bos_token_id is 259; it must lie in \[0, 258\]"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"add_bos_token": 1}, "add_bos_token is 1; it must be true or false"),
    ],
)
def test_a_damaged_vocabulary_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        load(byte_pairs(**changes))


def test_a_sentencepiece_vocabulary_needs_its_scores(trained) -> None:
    with pytest.raises(ModelFileError, match="scores has 0 entries"):
        load(pieces(trained, scores=[]))


def test_a_piece_as_long_as_a_book_is_refused_at_once(trained) -> None:
    metadata = pieces(trained)
    tokens = list(metadata["tokenizer.ggml.tokens"])
    tokens[-1] = "a" * 10_000_000
    started = time.perf_counter()
    with pytest.raises(ModelFileError, match=r"has 10000000 characters; the limit is 512"):
        load(pieces(trained, tokens=tokens))
    assert time.perf_counter() - started < 1.0
