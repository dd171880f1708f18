"""Which dialect a template speaks, by words that the published templates have."""

import pytest

from atomesh.errors import ConfigurationError
from atomesh.frontend.tool_calls.registry import DIALECTS, check_dialect, find_tool_dialect, load_dialect

TEMPLATES = [
    ("hermes", '{{ \'<tool_call>\\n{"name": "\' + tool_call.name }}'),
    ("qwen3_coder", "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>"),
    ("mistral", "{{ '[TOOL_CALLS]' + tool_call.function.name + '[ARGS]' }}"),
    ("deepseek_v3", "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '```json'}}"),
    ("deepseek_v31", "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ tool['function']['name'] }}"),
    ("kimi_k2", "<|tool_call_begin|>{{ tool_call['id'] }}<|tool_call_argument_begin|>"),
    ("llama3_json", "{{- '<|python_tag|>' + tool_call.name + '.call(' }}"),
    (
        "llama3_json",
        'Respond in the format {"name": function name, "parameters": dictionary of argument name',
    ),
    (
        "pythonic",
        "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]",
    ),
    (
        "harmony",
        "<|start|>assistant<|channel|>commentary to=functions.{{ name }} <|constrain|>json<|message|>",
    ),
    ("hermes", "{% for message in messages %}{{ message['content'] }}{% endfor %}"),
]


@pytest.mark.parametrize(("dialect", "template"), TEMPLATES)
def test_the_dialect_is_found_in_the_template(dialect: str, template: str) -> None:
    assert find_tool_dialect(["{{ bos_token }}", template]) == dialect


def test_a_model_without_a_template_speaks_the_default() -> None:
    assert find_tool_dialect([]) == "hermes"


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_every_dialect_is_there_under_its_name(name: str) -> None:
    check_dialect(name)
    assert load_dialect(name).name == name


def test_another_name_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="--tool-call-parser is 'hermit'; it must be one of deepseek_v3"
    ):
        check_dialect("hermit")
