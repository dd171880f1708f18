"""/v1/completions with a suffix: filled in by a model with the marks for it, else refused."""

from collections.abc import Iterator

import openai
import pytest
import tokenizers

from atomesh.frontend.text.fill_in_the_middle import FAMILIES
from atomesh.testing.letters_server import make_client
from atomesh.testing.served_process import served_process, wait_ready
from atomesh.testing.tiny_model import write_tiny_model
from atomesh.testing.wire import Wire

QWEN = FAMILIES[0]
VOCABULARY = 384 + len(QWEN.marks) + 1


@pytest.fixture(scope="module")
def filling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A tiny model with Qwen's marks, served as one prefill and one decode worker."""
    model = write_tiny_model(tmp_path_factory.mktemp("fim") / "fim", vocab_size=VOCABULARY)
    file = str(model / "tokenizer.json")
    spec = tokenizers.Tokenizer.from_file(file)
    spec.add_tokens([*QWEN.marks, "<|fim_pad|>"])
    spec.save(file)
    with served_process(model, tmp_path_factory.mktemp("home")) as served:
        wait_ready(served)
        with make_client(served.url) as client:
            yield Wire(served.url, served.model, client)


def complete(wire: Wire, **fields):
    return wire.client.completions.create(
        **{"model": wire.model, "temperature": 0, "max_tokens": 8, **fields}
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_hole_is_filled_as_the_written_prompt_would_be(filling: Wire, stream: bool) -> None:
    written = complete(filling, prompt="<|fim_prefix|>the sea<|fim_suffix|> of it<|fim_middle|>")
    answer = complete(filling, prompt="the sea", suffix=" of it", stream=stream)
    text = "".join(chunk.choices[0].text for chunk in answer) if stream else answer.choices[0].text
    assert text == written.choices[0].text


def test_each_prompt_of_a_batch_has_the_same_suffix(filling: Wire) -> None:
    prompts = ["the sea", ""]
    written = [f"<|fim_prefix|>{prompt}<|fim_suffix|> of it<|fim_middle|>" for prompt in prompts]
    told = complete(filling, prompt=prompts, suffix=" of it")
    assert [choice.text for choice in told.choices] == [
        choice.text for choice in complete(filling, prompt=written).choices
    ]
    assert told.usage.prompt_tokens == complete(filling, prompt=written).usage.prompt_tokens


def test_the_marks_that_end_a_filling_end_it(filling: Wire) -> None:
    pad = VOCABULARY - 1
    only = {"allowed_token_ids": [pad]}
    answer = complete(filling, prompt="a", suffix="b", extra_body=only)
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("stop", 1)
    goes_on = complete(filling, prompt="a", suffix="b", extra_body={**only, "ignore_eos": True})
    assert (goes_on.choices[0].finish_reason, goes_on.usage.completion_tokens) == ("length", 8)
    unfilled = complete(filling, prompt="a", extra_body=only)
    assert unfilled.choices[0].finish_reason == "length"


@pytest.mark.parametrize("field", [{"echo": True}, {"extra_body": {"truncate_prompt_tokens": 4}}])
def test_what_makes_no_sense_beside_a_suffix(filling: Wire, field) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot be had with suffix"):
        complete(filling, prompt="a", suffix="b", **field)


def test_a_suffix_too_long_for_the_context(filling: Wire) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        complete(filling, prompt="a", suffix="b " * 4000)


def test_a_model_without_marks_refuses(stack: Wire) -> None:
    with pytest.raises(openai.BadRequestError, match="fill-in-the-middle") as caught:
        complete(stack, prompt="a", suffix="b")
    assert caught.value.param == "suffix"
    assert complete(stack, prompt="a", suffix="").choices[0].text


def test_a_chat_takes_none(stack: Wire) -> None:
    with pytest.raises(openai.BadRequestError, match="belongs to /v1/completions"):
        stack.client.chat.completions.create(
            model=stack.model, messages=[{"role": "user", "content": "x"}], extra_body={"suffix": "b"}
        )
