"""The whole engine in one process: files, tokenizer, weights, scheduler, sampler, text."""

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atomesh import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from atomesh.engine.core.batch import ScheduledBatch, StepResult
from atomesh.errors import ConfigurationError, ContextLengthError, InvalidRequestError
from atomesh.testing.tiny_model import write_tiny_model
from atomesh.testing.tiny_tokenizer import EOS_TOKEN_ID

PROMPTS = ["hello world", "the", "a longer prompt, with some more words in it than the others", "x"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
CONTEXT = 256


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def loaded(model: Path) -> Iterator[LLM]:
    with LLM(model, dtype="float32", kv_memory=2**24, threads=1) as llm:
        yield llm


@pytest.fixture
def llm(loaded: LLM) -> Iterator[LLM]:
    """Idle and without a cached prefix, before and after."""
    loaded.reset_prefix_cache()
    yield loaded
    engine = loaded._engine
    assert not engine.has_work()
    engine.check_invariants()
    load = engine.load()
    assert load.running == load.waiting == 0
    assert load.free_blocks + load.cached_blocks == load.total_blocks


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **fields})


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def test_outputs_come_in_order_and_say_what_they_answer(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [output.prompt for output in outputs] == PROMPTS
    assert len({output.request_id for output in outputs}) == len(PROMPTS)
    for output in outputs:
        (answer,) = output.outputs
        assert output.finished
        assert answer.index == 0
        assert answer.finish_reason == "length"
        assert answer.stop_reason is None
        assert len(answer.token_ids) == 12
        assert answer.logprobs is answer.cumulative_logprob is None
        assert answer.text == llm._tokenizer.decode(answer.token_ids, skip_special_tokens=True)


def test_all_forms_of_a_prompt_give_one_answer(llm: LLM) -> None:
    text = PROMPTS[2]
    token_ids = llm._tokenizer.encode(text)
    answers = [
        llm.generate(text, GREEDY),
        llm.generate([text], GREEDY),
        llm.generate({"prompt": text}, GREEDY),
        llm.generate([{"prompt_token_ids": token_ids}], GREEDY),
        llm.generate(prompt_token_ids=token_ids, sampling_params=GREEDY),
        llm.generate(prompt_token_ids=[token_ids], sampling_params=GREEDY),
    ]
    assert all(ids(answer) == ids(answers[0]) for answer in answers)
    assert [answer[0].prompt for answer in answers] == [text, text, text, None, None, None]
    assert all(answer[0].prompt_token_ids == token_ids for answer in answers)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_does_not_depend_on_company(llm: LLM, temperature: float) -> None:
    asked = params(temperature=temperature, seed=3, top_p=0.95)
    together = ids(llm.generate(PROMPTS, asked))
    llm.reset_prefix_cache()
    assert together == [ids(llm.generate(prompt, asked))[0] for prompt in PROMPTS]


def test_each_prompt_may_have_its_own_params(llm: LLM) -> None:
    own = [params(max_tokens=n) for n in (1, 2, 3)]
    assert [len(token_ids) for token_ids in ids(llm.generate(["a"] * 3, own))] == [1, 2, 3]


def test_without_params_sixteen_tokens_are_sampled(llm: LLM) -> None:
    assert len(llm.generate("hello")[0].outputs[0].token_ids) <= 16


def test_choices_differ_and_a_seed_repeats_them(llm: LLM) -> None:
    asked = params(temperature=1.0, n=4, seed=11)
    (first,), (second,) = llm.generate("hello", asked), llm.generate("hello", asked)
    assert [answer.index for answer in first.outputs] == [0, 1, 2, 3]
    assert len({tuple(answer.token_ids) for answer in first.outputs}) == 4
    assert first.outputs == second.outputs
    (other,) = llm.generate("hello", params(temperature=1.0, n=4, seed=12))
    assert other.outputs != first.outputs


def test_without_a_seed_answers_differ(llm: LLM) -> None:
    answers = ids(llm.generate(["hello"] * 4, params(temperature=2.0)))
    assert len({tuple(answer) for answer in answers}) == 4


def test_a_stop_token_ends_the_answer_and_is_in_its_ids_only(llm: LLM) -> None:
    free = ids(llm.generate("hello", GREEDY))[0]
    stop = free[3]
    length = free.index(stop) + 1
    (answer,) = llm.generate("hello", params(stop_token_ids=[stop]))[0].outputs
    assert answer.token_ids == free[:length]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
    assert answer.text == llm._tokenizer.decode(free[: length - 1], skip_special_tokens=True)


def test_eos_ends_the_answer(llm: LLM) -> None:
    (answer,) = llm.generate("hello", params(logit_bias={EOS_TOKEN_ID: 100.0}))[0].outputs
    assert answer.token_ids == [EOS_TOKEN_ID]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("", "stop", None)


def test_min_tokens_holds_eos_back_and_ignore_eos_ignores_it(llm: LLM) -> None:
    bias = {EOS_TOKEN_ID: 100.0}
    held, ignored = ids(
        llm.generate(
            ["hello"] * 2, [params(logit_bias=bias, min_tokens=3), params(logit_bias=bias, ignore_eos=True)]
        )
    )
    assert len(held) == 4
    assert [token_id == EOS_TOKEN_ID for token_id in held] == [False, False, False, True]
    assert ignored == [EOS_TOKEN_ID] * 12


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_cuts_the_text(llm: LLM, include: bool) -> None:
    (free,) = llm.generate("hello", params(allowed_token_ids=list(range(40, 80)), max_tokens=20))[0].outputs
    stop = free.text[7:9]
    end = free.text.index(stop)
    asked = params(
        allowed_token_ids=list(range(40, 80)), max_tokens=20, stop=stop, include_stop_str_in_output=include
    )
    (answer,) = llm.generate("hello", asked)[0].outputs
    assert answer.text == free.text[: end + (2 if include else 0)]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
    assert answer.token_ids == free.token_ids[: len(answer.token_ids)]
    assert llm._tokenizer.decode(answer.token_ids).endswith(stop)


def test_a_choice_that_meets_a_stop_string_leaves_the_others_alone(llm: LLM) -> None:
    fields: dict[str, Any] = {
        "temperature": 1.0,
        "n": 3,
        "seed": 5,
        "allowed_token_ids": list(range(40, 80)),
        "max_tokens": 20,
    }
    free = llm.generate("hello", params(**fields))[0].outputs
    stop = free[1].text[5:9]
    assert stop not in free[0].text + free[2].text
    stopped = llm.generate("hello", params(**fields, stop=[stop]))[0].outputs
    assert stopped[0] == free[0]
    assert stopped[2] == free[2]
    assert stopped[1].text == free[1].text[: free[1].text.index(stop)]
    assert stopped[1].stop_reason == stop


def test_logprobs_describe_each_token(llm: LLM) -> None:
    (output,) = llm.generate("hello world", params(logprobs=3, prompt_logprobs=2))
    (answer,) = output.outputs
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids)
    for token_id, entry in zip(answer.token_ids, answer.logprobs, strict=True):
        assert next(iter(entry)) == token_id
        assert entry[token_id].rank == 1  # greedy
        assert sorted(logprob.rank for logprob in entry.values()) == [1, 2, 3]
        assert entry[token_id].decoded_token == llm._tokenizer.token_bytes(token_id).decode(
            "utf-8", "replace"
        )
    total = sum(
        entry[token_id].logprob for token_id, entry in zip(answer.token_ids, answer.logprobs, strict=True)
    )
    assert answer.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert [next(iter(entry)) for entry in output.prompt_logprobs[1:] if entry] == output.prompt_token_ids[1:]


def test_prompt_logprobs_agree_with_what_decoding_says(llm: LLM) -> None:
    (output,) = llm.generate("hello", params(logprobs=0))
    (answer,) = output.outputs
    whole = output.prompt_token_ids + answer.token_ids
    (again,) = llm.generate(prompt_token_ids=whole, sampling_params=params(prompt_logprobs=0, max_tokens=1))
    assert again.prompt_logprobs is not None
    assert answer.logprobs is not None
    for entry, token_id, decoded in zip(
        again.prompt_logprobs[-len(answer.token_ids) :], answer.token_ids, answer.logprobs, strict=True
    ):
        assert entry is not None
        assert entry[token_id].logprob == pytest.approx(decoded[token_id].logprob, abs=1e-5)
        assert entry[token_id].rank == 1


def test_a_bad_word_is_not_said(llm: LLM) -> None:
    free = ids(llm.generate("hello", params(allowed_token_ids=list(range(40, 80)))))[0]
    word = llm._tokenizer.decode(free[:1])
    said = ids(llm.generate("hello", params(allowed_token_ids=list(range(40, 80)), bad_words=[word])))[0]
    assert free[0] not in said


def test_a_second_ask_finds_its_prefix(llm: LLM) -> None:
    prompt = list(range(10, 80))
    fresh, cached = (llm.generate(prompt_token_ids=prompt, sampling_params=GREEDY)[0] for _ in range(2))
    assert (fresh.num_cached_tokens, cached.num_cached_tokens) == (0, 64)
    assert fresh.outputs == cached.outputs
    llm.reset_prefix_cache()
    assert llm.generate(prompt_token_ids=prompt, sampling_params=GREEDY)[0].num_cached_tokens == 0


def test_a_full_context_ends_the_answer(llm: LLM) -> None:
    prompt = [7] * (CONTEXT - 3)
    (answer,) = llm.generate(
        prompt_token_ids=prompt, sampling_params=params(max_tokens=None, ignore_eos=True)
    )[0].outputs
    assert len(answer.token_ids) == 3
    assert answer.finish_reason == "length"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "either prompts or prompt_token_ids"),
        ({"prompts": "a", "prompt_token_ids": [1]}, "either prompts or prompt_token_ids"),
        ({"prompts": [""]}, "empty"),
        ({"prompts": [{"text": "a"}]}, "'prompt' or 'prompt_token_ids'"),
        ({"prompt_token_ids": [1, [2]]}, "mix"),
        ({"prompt_token_ids": [100_000]}, "vocabulary"),
        ({"prompts": ["a", "b"], "sampling_params": [GREEDY]}, "1 sampling_params for 2 prompts"),
        ({"prompts": "a", "sampling_params": params(stop_token_ids=[100_000])}, "stop_token_ids"),
        ({"prompts": "a", "sampling_params": {"top_k": 1}}, r"sampling_params has {'top_k': 1} \(dict\)"),
        ({"prompts": ["a"], "sampling_params": [{}]}, r"sampling_params has {} \(dict\)"),
        ({"prompts": "a", "sampling_params": 3}, r"sampling_params has 3 \(int\) where it needs a list"),
        ({"prompts": "a", "sampling_params": params(max_tokens=0)}, "max_tokens is 0"),
        ({"prompts": 3}, r"prompts has 3 \(int\) where it needs a list"),
        ({"prompts": [3]}, r"a prompt is 3 \(int\)"),
        ({"prompts": [{"prompt_token_ids": [1.5]}]}, r"has 1.5 \(float\); ids must be ints"),
        ({"prompt_token_ids": [1, True]}, r"has True \(bool\); ids must be ints"),
        ({"prompt_token_ids": [1.5]}, r"has 1.5 \(float\) where it needs a list"),
    ],
)
def test_a_bad_argument_is_refused_before_anything_runs(
    llm: LLM, arguments: dict[str, Any], words: str
) -> None:
    steps = llm._engine.load().steps
    with pytest.raises(InvalidRequestError, match=words):
        llm.generate(**arguments)
    assert llm._engine.load().steps == steps


def test_one_bad_prompt_among_good_ones_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match=f"maximum context length is {CONTEXT} tokens"):
        llm.generate(prompt_token_ids=[[5, 6], [7] * CONTEXT], sampling_params=GREEDY)
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        llm.generate(prompt_token_ids=[[5, 6], [100_000]], sampling_params=GREEDY)


def test_no_tokens_are_asked_for_with_prompt_logprobs_only(llm: LLM) -> None:
    (output,) = llm.generate(prompt_token_ids=[5, 6], sampling_params=params(max_tokens=0, prompt_logprobs=0))
    assert output.outputs[0].token_ids == []
    assert output.prompt_logprobs is not None
    assert [list(entry or {}) for entry in output.prompt_logprobs] == [[], [6]]


def test_the_tokenizer_and_the_defaults_can_be_had(llm: LLM) -> None:
    assert llm.get_tokenizer().decode(llm.get_tokenizer().encode("hello")) == "hello"
    assert llm.get_default_sampling_params() == SamplingParams()


def test_a_bar_counts_every_prompt_once(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    asked: list[object] = []

    @contextmanager
    def counting(total: int, *, is_wanted: bool) -> Iterator[Any]:
        asked.append((total, is_wanted))
        yield counts.append

    monkeypatch.setattr("atomesh.llm.prompt_progress", counting)
    llm.generate(PROMPTS, params(temperature=1.0, n=2), use_tqdm=True)
    llm.chat([{"role": "user", "content": "hi"}], GREEDY)
    assert asked == [(4, True), (1, False)]
    assert sum(counts) == 5


def test_an_unknown_argument_is_named_beside_those_there_are(model: Path) -> None:
    with pytest.raises(ConfigurationError, match="LLM has no argument 'tensor_parallel_size'") as caught:
        LLM(model, tensor_parallel_size=2)
    assert "chat_template, dtype, weights, device, attention, max_model_len, " in caught.value.message


def test_no_prompts_no_outputs(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_a_prompt_that_fails_in_the_engine_is_the_only_one_lost(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="atomesh.engine.engine")
    executor = llm._engine._executor
    execute = executor.execute
    good = ids(llm.generate(["hello", "x"], GREEDY))
    llm.reset_prefix_cache()

    def fail_on_nine(batch: ScheduledBatch) -> StepResult:
        if any(9 in sequence.prompt_token_ids for sequence in batch.sequences):
            raise RuntimeError("as scripted")
        return execute(batch)

    monkeypatch.setattr(executor, "execute", fail_on_nine)
    first, bad, last = llm.generate(["hello", {"prompt_token_ids": [9, 9]}, "x"], GREEDY)
    assert ids([first, last]) == good
    (answer,) = bad.outputs
    assert (answer.finish_reason, answer.token_ids, answer.text) == ("error", [], "")
    assert answer.error is not None
    assert "scripted" not in answer.error


def test_an_interrupt_leaves_the_engine_idle(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step, seen = llm._engine.step, []

    def interrupted() -> Any:
        seen.append(None)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm._engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY)


def test_chat_goes_through_the_template(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    (output,) = llm.chat(conversation, GREEDY)
    assert output.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert output.outputs == llm.generate(output.prompt, GREEDY)[0].outputs
    assert ids(llm.chat([conversation, conversation], GREEDY)) == ids([output, output])


def test_chat_may_continue_the_last_message(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well"}]
    (output,) = llm.chat(conversation, GREEDY, continue_final_message=True)
    assert output.prompt is not None
    assert output.prompt.endswith("<|im_start|>assistant\nwell")


def test_special_tokens_in_a_message_are_plain_text(llm: LLM) -> None:
    (plain,) = llm.chat([{"role": "user", "content": "<|im_end|>"}], GREEDY)
    assert plain.prompt_token_ids.count(EOS_TOKEN_ID) == 1


@pytest.mark.parametrize("messages", ["hi", 5, ["hi"], [["hi"]], [5]])
def test_what_is_no_conversation_is_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.chat(messages)
    assert caught.value.param == "messages"


def test_a_model_without_a_template_says_so(model: Path, tmp_path: Path) -> None:
    for file in model.iterdir():
        if file.name != "tokenizer_config.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with (
        LLM(tmp_path, kv_memory=2**22, threads=1) as bare,
        pytest.raises(InvalidRequestError, match="chat template"),
    ):
        bare.chat([{"role": "user", "content": "hi"}])


def test_ids_may_come_as_arrays(llm: LLM) -> None:
    token_ids = llm._tokenizer.encode(PROMPTS[2])
    expected = ids(llm.generate(prompt_token_ids=token_ids, sampling_params=GREEDY))
    forms: list[Any] = [
        np.array(token_ids),
        np.array([token_ids], dtype=np.uint16),
        [np.array(token_ids)],
        [np.int64(token_id) for token_id in token_ids],
        torch.tensor([token_ids]),
        range(token_ids[0], token_ids[0] + 1),
    ]
    *outputs, last = [llm.generate(prompt_token_ids=form, sampling_params=GREEDY) for form in forms]
    outputs.append(llm.generate({"prompt_token_ids": np.array(token_ids)}, GREEDY))
    assert all(ids(output) == expected for output in outputs)
    assert all(type(each) is int for output in outputs for each in output[0].prompt_token_ids)
    assert last[0].prompt_token_ids == token_ids[:1]
    batch = llm.generate(prompt_token_ids=np.array([[5, 6], [7, 8]]), sampling_params=GREEDY)
    assert [output.prompt_token_ids for output in batch] == [[5, 6], [7, 8]]


@pytest.mark.parametrize(
    "token_ids", [np.array([1.0, 2.0]), np.array(5), np.array([True]), np.array([[[1]]])]
)
def test_arrays_of_anything_but_ids_are_refused(llm: LLM, token_ids: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(prompt_token_ids=token_ids)
    assert caught.value.param == "prompt_token_ids"


def test_an_extreme_repetition_penalty_is_obeyed(llm: LLM) -> None:
    never, always = llm.generate(
        [PROMPTS[2]] * 2, [params(repetition_penalty=each) for each in (1e30, 1e-30)]
    )
    seen = never.prompt_token_ids
    answer = never.outputs[0].token_ids
    assert len({*answer, *seen}) == 12 + len(set(seen))
    assert set(always.outputs[0].token_ids) <= set(seen)


def test_without_params_the_model_s_own_defaults_hold(model: Path, tmp_path: Path) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    told = {"top_k": 1, "repetition_penalty": 1.2, "temperature": 9.0, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(told))
    own = SamplingParams(top_k=1, repetition_penalty=1.2)
    with LLM(os.fspath(tmp_path), dtype="float32", kv_memory=np.int64(2**22), threads=1) as llm:
        assert llm.get_default_sampling_params() == own
        assert ids(llm.generate(PROMPTS)) == ids(llm.generate(PROMPTS, own))
        conversation = [{"role": "user", "content": "hi"}]
        assert ids(llm.chat(conversation)) == ids(llm.chat(conversation, own))
        assert ids(llm.generate(PROMPTS, params(temperature=0.0))) != ids(llm.generate(PROMPTS))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_num_seqs": "8"}, "max_num_seqs is '8' (str); it must be an int from 1 to"),
        ({"model": 5}, "model is 5 (int); it must be a str or a path"),
        ({"model": b"x"}, "model is b'x' (bytes); it must be a str or a path"),
        ({"home": 5}, "home is 5 (int); it must be a str or a path"),
        ({"chat_template": ["x"]}, "chat_template is ['x'] (list); it must be a str or a path"),
    ],
)
def test_an_argument_of_another_type_is_refused_by_name(
    model: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        LLM(**{"model": model, **arguments})
    assert caught.value.message.startswith(message)


def test_a_template_may_be_named_by_a_str(model: Path, tmp_path: Path) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}!{% endfor %}")
    with LLM(model, chat_template=str(template), home=str(tmp_path), kv_memory=2**22, threads=1) as llm:
        assert llm.chat([{"role": "user", "content": "hi"}], GREEDY)[0].prompt == "hi!"


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"choice": ["yes", "nope"]}, "yes|nope"),
        ({"regex": "[a-f]{3}-[0-9]"}, "[a-f]{3}-[0-9]"),
        ({"grammar": 'start: "<" /[a-c]+/ ">"'}, "<[a-c]+>"),
        ({"json": {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}}, r"\{.*\}"),
        ({"json": '{"enum": [1, 20]}'}, "1|20"),
    ],
)
def test_structured_outputs_are_obeyed(llm: LLM, wanted: dict[str, Any], pattern: str) -> None:
    wanted_params = StructuredOutputsParams(**wanted)
    asked = params(structured_outputs=wanted_params, max_tokens=100, temperature=1.0, seed=3, n=2)
    assert asked.clone(seed=3) == asked
    [output] = llm.generate("hello", asked)
    for choice in output.outputs:
        assert choice.finish_reason == "stop" or wanted.keys() & {"json", "grammar"}
        if choice.finish_reason == "stop":
            assert re.fullmatch(pattern, choice.text, re.DOTALL)


def test_structured_outputs_that_cannot_be_obeyed_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="keywords 'not'"):
        llm.generate(PROMPTS, params(structured_outputs=StructuredOutputsParams(json={"not": {}})))
    with pytest.raises(InvalidRequestError, match="exactly one"):
        llm.generate(PROMPTS, params(structured_outputs=StructuredOutputsParams()))
    with pytest.raises(InvalidRequestError, match="StructuredOutputsParams"):
        params(structured_outputs={"regexp": "a"})
