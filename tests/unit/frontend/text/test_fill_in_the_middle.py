"""Prompts with a hole, for each family's marks, against transformers' reading of the same text."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from atomesh.errors import InvalidRequestError
from atomesh.frontend.text.fill_in_the_middle import FAMILIES, FimFamily, fill_in_the_middle
from atomesh.frontend.text.tokenizer import Tokenizer, load_tokenizer
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.testing.tiny_model import write_tiny_model

QWEN, STARCODER, DEEPSEEK, CODE_LLAMA, CODESTRAL = FAMILIES
# As the makers of each family write them, p the prefix and s the suffix.
WRITTEN = {
    QWEN: "<|fim_prefix|>{p}<|fim_suffix|>{s}<|fim_middle|>",
    STARCODER: "<fim_prefix>{p}<fim_suffix>{s}<fim_middle>",
    DEEPSEEK: "<｜fim▁begin｜>{p}<｜fim▁hole｜>{s}<｜fim▁end｜>",
    CODESTRAL: "[SUFFIX]{s}[PREFIX]{p}",
}
PREFIX, SUFFIX = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))"


class Marked:
    """A tiny tokenizer with a family's marks, ours and transformers'; `is_special` as the family has them."""

    def __init__(self, folder: Path, family: FimFamily, kind: str = "bytes", is_special: bool = True) -> None:
        directory = write_tiny_model(folder, tokenizer=kind)
        file = str(directory / "tokenizer.json")
        spec = tokenizers.Tokenizer.from_file(file)
        marks = [
            tokenizers.AddedToken(mark, special=is_special, normalized=False)
            for mark in (*family.marks, *family.ends)
        ]
        (spec.add_special_tokens if is_special else spec.add_tokens)(marks)
        if kind == "sentencepiece":
            spec.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        spec.save(file)
        self.family = family
        self.ours: Tokenizer = load_tokenizer(open_checkpoint(directory))
        config = json.loads((directory / "tokenizer_config.json").read_text())
        self.theirs = PreTrainedTokenizerFast(tokenizer_file=file, **config)

    def encode(self, prefix: str | list[int], suffix: str, *, adds_bos: bool = True) -> list[int]:
        return fill_in_the_middle(self.ours).encode(self.ours, prefix, suffix, adds_bos=adds_bos)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[FimFamily], Marked]:
    made: dict[str, Marked] = {}

    def make(family: FimFamily) -> Marked:
        if family.name not in made:
            folder = tmp_path_factory.mktemp("marked")
            made[family.name] = Marked(folder, family, is_special=family is not QWEN)
        return made[family.name]

    return make


@pytest.mark.parametrize("family", WRITTEN, ids=lambda family: family.name)
def test_the_prompt_is_what_the_makers_write(
    marked: Callable[[FimFamily], Marked], family: FimFamily
) -> None:
    one = marked(family)
    written = WRITTEN[family].format(p=PREFIX, s=SUFFIX)
    assert one.encode(PREFIX, SUFFIX) == one.theirs.encode(written, add_special_tokens=False)
    assert fill_in_the_middle(one.ours).family is family


@pytest.mark.parametrize("family", WRITTEN, ids=lambda family: family.name)
def test_nothing_before_the_hole_is_a_prompt_too(
    marked: Callable[[FimFamily], Marked], family: FimFamily
) -> None:
    one = marked(family)
    written = WRITTEN[family].format(p="", s=SUFFIX)
    assert one.encode("", SUFFIX) == one.theirs.encode(written, add_special_tokens=False)


@given(
    texts=st.tuples(
        *[st.lists(st.sampled_from([*QWEN.marks, "<", "|fim_middle|>", "x", " ", "é"]), max_size=6)] * 2
    )
)
def test_marks_in_the_texts_are_text(
    marked: Callable[[FimFamily], Marked], texts: tuple[list[str], list[str]]
) -> None:
    """Also where they are no special tokens, as Qwen has them."""
    one = marked(QWEN)
    prefix, suffix = map("".join, texts)
    ids = one.encode(prefix, suffix or "x")
    middle = fill_in_the_middle(one.ours)
    assert [token_id for token_id in ids if token_id in middle.mark_ids] == list(middle.mark_ids)
    assert one.ours.decode(ids) == WRITTEN[QWEN].format(p=prefix, s=suffix or "x")


@pytest.fixture(scope="module")
def code_llama(tmp_path_factory: pytest.TempPathFactory) -> Marked:
    return Marked(tmp_path_factory.mktemp("code-llama"), CODE_LLAMA, "sentencepiece")


@pytest.mark.parametrize("suffix", [SUFFIX, " of the", "the", "é"])
def test_code_llama_has_no_space_before_what_follows(code_llama: Marked, suffix: str) -> None:
    before, between, after = (code_llama.ours.token_id(mark) for mark in CODE_LLAMA.marks)
    ids = code_llama.encode("the ", suffix)
    assert ids[:2] == [code_llama.ours.bos_token_id, before]
    assert ids[-1] == after
    cut = ids.index(between)
    assert ids[2:cut] == code_llama.theirs.encode("the ", add_special_tokens=False)
    assert b"".join(map(code_llama.ours.token_bytes, ids[cut + 1 : -1])) == suffix.encode()


def test_a_prefix_of_ids_is_kept_as_it_is(code_llama: Marked) -> None:
    ids = code_llama.encode([7, 8, 9], "x", adds_bos=False)
    assert ids[0] == code_llama.ours.token_id("▁<PRE>")
    assert ids[1:4] == [7, 8, 9]


def test_the_family_s_ends_are_those_that_the_vocabulary_has(
    marked: Callable[[FimFamily], Marked], code_llama: Marked
) -> None:
    for one in (marked(QWEN), marked(STARCODER), code_llama):
        told = fill_in_the_middle(one.ours).end_token_ids
        assert told == tuple(one.theirs.convert_tokens_to_ids(end) for end in one.family.ends)
    assert fill_in_the_middle(marked(DEEPSEEK).ours).end_token_ids == ()


def test_a_model_without_marks_is_named_as_such(tmp_path: Path) -> None:
    plain = load_tokenizer(open_checkpoint(write_tiny_model(tmp_path)))
    with pytest.raises(InvalidRequestError, match="needs a model with fill-in-the-middle tokens") as caught:
        fill_in_the_middle(plain)
    assert caught.value.param == "suffix"


def test_half_a_family_is_none(tmp_path: Path) -> None:
    half = FimFamily("half", "<|fim_prefix|>", "<|fim_suffix|>", None)
    with pytest.raises(InvalidRequestError):
        fill_in_the_middle(Marked(tmp_path, half).ours)
