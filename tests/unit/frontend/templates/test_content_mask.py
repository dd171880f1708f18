import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.errors import InvalidRequestError, ModelFileError
from atomesh.frontend.templates.content_mask import ContentMask

CHATML = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
LLAMA2 = ["<s>", "</s>", "[INST]"]


@pytest.mark.parametrize(
    "tokens", [CHATML, LLAMA2, ["<start_of_turn>"], ["▁▁"], ["stop"], ["<｜end▁of▁text｜>"]]
)
@given(data=st.data())
def test_masked_text_holds_no_special_token_however_it_is_joined(
    tokens: list[str], data: st.DataObject
) -> None:
    mask = ContentMask(tokens, "")
    halves = [token[:cut] for token in tokens for cut in range(1, len(token) + 1)]
    halves += [token[cut:] for token in tokens for cut in range(len(token))]
    texts = data.draw(st.lists(st.sampled_from(halves) | st.text(max_size=5), max_size=8))
    joined = "".join(mask.apply(texts))
    assert not any(token in joined for token in tokens)
    assert joined.translate(dict(mask.unmask)) == "".join(texts)


def test_keys_are_the_characters_that_text_needs_least() -> None:
    assert sorted(ContentMask(CHATML, "").unmask.values()) == ["|"]
    assert sorted(ContentMask(LLAMA2, "").unmask.values()) == ["<", "["]


def test_text_without_keys_stays_as_it_is() -> None:
    value = [{"role": "user", "content": "a <b> [c] é"}, 3, None, True]
    assert ContentMask(CHATML, "").apply(value) == value


def test_names_and_nested_text_are_masked() -> None:
    masked = ContentMask(CHATML, "").apply({"a|": {"b": ("|", 1)}})
    assert masked == {"a\udc00": {"b": ["\udc00", 1]}}


def test_markup_that_the_template_reads_stays_readable() -> None:
    mask = ContentMask(["<s>"], "{% if '</think>' in content %}{% endif %}{{ '<s>' }}")
    assert mask.apply("</think> <s> <think>") == "</think> \udc00s> \udc00think>"


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"lone surrogate, U\+DC00"):
        ContentMask(CHATML, "").apply("\udc00")


def test_deep_nesting_is_refused() -> None:
    value: object = "x"
    for _ in range(200):
        value = [value]
    with pytest.raises(InvalidRequestError, match="deeper than 100 levels"):
        ContentMask(CHATML, "").apply(value)


def test_a_tokenizer_of_nothing_but_oddities_is_refused() -> None:
    with pytest.raises(ModelFileError, match="special tokens with nothing in common"):
        ContentMask([chr(0x4E00 + i) for i in range(2000)], "")
