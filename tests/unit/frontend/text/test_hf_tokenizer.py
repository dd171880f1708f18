import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from atomesh.errors import InvalidRequestError, ModelFileError
from atomesh.frontend.text.tokenizer import load_tokenizer
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.testing.tiny_model import write_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model")


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def damage(path: Path, change) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_tokens_that_only_the_configuration_has_are_added(model: Path) -> None:
    entry = {"content": "<tool>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    plain = {"content": "<b>", "special": False, "lstrip": False, "rstrip": False, "normalized": False}
    edit(model / "tokenizer_config.json", added_tokens_decoder={"384": entry, "385": plain})
    ours, reference = load_tokenizer(open_checkpoint(model)), AutoTokenizer.from_pretrained(model)

    for text in ("x<tool>y<b>", "<tool> <b> <|im_end|>"):
        assert ours.encode(text) == reference.encode(text)
        assert ours.decode(ours.encode(text)) == text
    assert ours.special_tokens["<tool>"] == 384
    assert not ours.is_special(385)


def test_a_post_processor_adds_its_tokens(model: Path) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    edit(model / "tokenizer.json", post_processor=template)
    tokenizer = load_tokenizer(open_checkpoint(model))
    bare = tokenizer.encode("of", add_special_tokens=False)
    assert tokenizer.encode("of") == [1, *bare]
    assert tokenizer.encode("of", parse_special=False) == [1, *bare]


def test_the_tokenizer_file_alone_says_what_is_added(model: Path) -> None:
    edit(model / "tokenizer_config.json", add_bos_token=True, add_eos_token=True)
    ours, reference = load_tokenizer(open_checkpoint(model)), AutoTokenizer.from_pretrained(model)
    assert ours.encode("of it") == reference.encode("of it")


def test_truncation_and_padding_in_the_file_are_not_ours(model: Path) -> None:
    text = "one two three four five six"
    expected = load_tokenizer(open_checkpoint(model)).encode(text)
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    edit(model / "tokenizer.json", truncation=truncation)
    assert load_tokenizer(open_checkpoint(model)).encode(text) == expected


def test_a_directory_without_tokenizer_json_says_what_to_do(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"no tokenizer\.json; add the file"):
        load_tokenizer(open_checkpoint(model))
    (model / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(ModelFileError, match="convert it once"):
        load_tokenizer(open_checkpoint(model))


def repeated(pattern: str, content: str, times: int) -> dict[str, object]:
    step = {"type": "Replace", "pattern": {"String": pattern}, "content": content}
    return {"type": "Sequence", "normalizers": [step] * times}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec: spec.pop("model"), "has no model"),
        (lambda spec: spec["model"].pop("vocab"), "definition is not valid"),
        (lambda spec: spec["model"].update(merges=[["nope", "never"]]), "definition is not valid"),
        (lambda spec: spec["model"].update(continuing_subword_prefix="x" * 99), "definition is not valid"),
        (lambda spec: spec["model"]["vocab"].update(a=-1), "definition is not valid"),
        (lambda spec: spec["model"]["vocab"].update(zzz=2**32 - 1), r"must lie in \[0, 4194303\]"),
        (lambda spec: spec["added_tokens"][0].update(id=2**40), r"must lie in \[0, 4194303\]"),
        (lambda spec: spec["added_tokens"][0].update(content=7), "no text"),
        (lambda spec: spec.update(added_tokens={"a": 1}), "is not a list"),
        (lambda spec: spec.update(normalizer=repeated("a", "aa", 7)), "64 times as long"),
        (lambda spec: spec.update(normalizer={"type": "Prepend", "prepend": "x" * 65}), "64 times as long"),
        (lambda spec: spec["model"]["vocab"].update({"x" * 5000: 384}), "has 5000 bytes; the limit is 4096"),
        (lambda spec: spec.update(decoder=None), "decoder is missing"),
        (
            lambda spec: spec.update(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}),
            "WordPiece",
        ),
    ],
)
def test_a_damaged_tokenizer_is_refused(model: Path, change, words: str) -> None:
    damage(model / "tokenizer.json", change)
    with pytest.raises(ModelFileError, match=words):
        load_tokenizer(open_checkpoint(model))


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\xff", "[]"])
def test_a_tokenizer_that_is_no_json_object_is_refused(model: Path, text: str) -> None:
    (model / "tokenizer.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        load_tokenizer(open_checkpoint(model))


def test_a_damaged_added_tokens_decoder_is_refused(model: Path) -> None:
    for decoder in ({"x": {"content": "a"}}, {"9" * 5000: {"content": "a"}}, {"400": "a"}):
        edit(model / "tokenizer_config.json", added_tokens_decoder=decoder)
        with pytest.raises(ModelFileError, match="added_tokens_decoder"):
            load_tokenizer(open_checkpoint(model))


def test_an_expression_that_never_ends_ends_as_a_refusal(model: Path) -> None:
    endless = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    edit(model / "tokenizer.json", pre_tokenizer=endless)
    tokenizer = load_tokenizer(open_checkpoint(model))
    with pytest.raises(InvalidRequestError, match="too many steps"):
        tokenizer.encode("a" * 40 + "!")
