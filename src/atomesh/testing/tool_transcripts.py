"""Answers of every dialect of tool calls, as models write them, and what they say."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

TOOLS: Mapping[str, Mapping[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"type": ["string", "null"]},
        },
    },
    "time.now": {"type": "object"},
    "save_file-2": {"type": "object", "properties": {"text": {"type": "string"}}},
}


class Transcript(NamedTuple):
    """`calls` are names with their arguments: an object, or text where it does not parse."""

    dialect: str
    text: str
    content: str
    calls: Sequence[tuple[str, Any]]


_BERLIN: tuple[str, dict[str, Any]] = ("weather", {"city": "Berlin"})
_NOW: tuple[str, dict[str, Any]] = ("time.now", {})
_NESTED = {"city": 'Zürich "☂"\n', "days": -3, "tags": ["a", "{}"], "note": None, "x": {"y": [1.5e3, True]}}
_NESTED_JSON = (
    r'{"city": "Z\u00fcrich \"☂\"\n", "days": -3, "tags": ["a", "{}"], "note": null, '
    r'"x": {"y": [1.5e3, true]}}'
)

HERMES = (
    Transcript("hermes", "Just words, 1 < 2 and <b>.\n", "Just words, 1 < 2 and <b>.\n", []),
    Transcript("hermes", "", "", []),
    Transcript(
        "hermes",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Berlin"}}\n</tool_call>',
        "",
        [_BERLIN],
    ),
    Transcript(
        "hermes",
        "I will look.\n\n<tool_call>\n"
        f'{{"name": "weather", "arguments": {_NESTED_JSON}}}\n</tool_call>\n'
        '<tool_call>{"arguments": {}, "name": "time.now"}</tool_call>\n\nDone.\n',
        "I will look.\n\nDone.\n",
        [("weather", _NESTED), _NOW],
    ),
    Transcript("hermes", '<tool_call>{"name": "time.now"}</tool_call> ', "", [_NOW]),
    Transcript("hermes", '<tool_call>{"name":"time.now","arguments":null}</tool_call>', "", [_NOW]),
    Transcript(
        "hermes",
        r'<tool_call>{"arguments": "{\"city\": \"\ud83d\"}", "name": "weather"}</tool_call>',
        "",
        [("weather", {"city": "\ud83d"})],
    ),
    Transcript(
        "hermes",
        r'<tool_call>{"id": 7, "name": "weather","arguments": "{\"city\": \"Berlin\"}", "x": []}</tool_call>',
        "",
        [_BERLIN],
    ),
    Transcript(
        "hermes",
        '<tool_call>{"type": "function", "name": "weather", '
        r'"arguments": "{\"city\": \"Berlin\"}"}</tool_call>',
        "",
        [_BERLIN],
    ),
    Transcript(
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "Berlin"}, "id": 3.5}</tool_call>',
        "",
        [_BERLIN],
    ),
    Transcript(
        "hermes",
        'Text <tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call> more',
        'Text <tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call> more',
        [],
    ),
    Transcript("hermes", "a <tool_call> is <tool_cal", "a <tool_call> is <tool_cal", []),
    Transcript(
        "hermes",
        '<tool_call><tool_call>{"name": "time.now", "arguments": {}}</tool_call>',
        "<tool_call>",
        [_NOW],
    ),
    Transcript(
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": oops}}</tool_call>',
        "oops}}</tool_call>",
        [("weather", '{"city": ')],
    ),
    Transcript(
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "Ber',
        "",
        [("weather", '{"city": "Ber')],
    ),
    Transcript("hermes", '<tool_call>{"name": "weat', '<tool_call>{"name": "weat', []),
    Transcript("hermes", '<tool_call>{"name": "time.now", "arguments": {}}\n</tool', "", [_NOW]),
    Transcript(
        "hermes",
        '<tool_call>{"name": "time.now", "arguments": {}} and on',
        " and on",
        [_NOW],
    ),
    Transcript(
        "hermes",
        '<tool_call>{"name": "time.now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "time.now", "arguments": [1]}</tool_call>',
        [],
    ),
    Transcript(
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"days": 01}}</tool_call>',
        "1}}</tool_call>",
        [("weather", '{"days": 0')],
    ),
)
LLAMA3 = (
    Transcript("llama3_json", "Hello {you}", "Hello {you}", []),
    Transcript(
        "llama3_json",
        '{"name": "weather", "parameters": {"city": "Berlin"}}; {"name": "time.now", "parameters": {}}',
        "",
        [_BERLIN, _NOW],
    ),
    Transcript(
        "llama3_json",
        '\n<|python_tag|>{"type": "function", "name": "weather", "parameters": {"city": "Berlin"}}',
        "",
        [_BERLIN],
    ),
    Transcript(
        "llama3_json",
        'Let me see. <|python_tag|>{"name": "time.now", "arguments": {}}\nThere.',
        "Let me see.\nThere.",
        [_NOW],
    ),
    Transcript(
        "llama3_json", '{"city": "Berlin", "name": "weather"}', '{"city": "Berlin", "name": "weather"}', []
    ),
    Transcript("llama3_json", '{"name": "John", "age": 3}', '{"name": "John", "age": 3}', []),
    Transcript("llama3_json", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    Transcript("llama3_json", "{not json", "{not json", []),
    Transcript(
        "llama3_json",
        '{"name": "time.now", "parameters": {}}; {"name": "no", "parameters": {}}',
        '; {"name": "no", "parameters": {}}',
        [_NOW],
    ),
)
MISTRAL = (
    Transcript("mistral", "[TOOL] calls", "[TOOL] calls", []),
    Transcript(
        "mistral",
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Berlin"}}, '
        '{"arguments": {}, "name": "time.now"}]',
        "",
        [_BERLIN, _NOW],
    ),
    Transcript(
        "mistral",
        f'Sure. [TOOL_CALLS] [ {{"name": "weather", "arguments": {_NESTED_JSON}, "id": "123456789"}} ]',
        "Sure.",
        [("weather", _NESTED)],
    ),
    Transcript(
        "mistral",
        '[TOOL_CALLS]weather{"city": "Berlin"}[TOOL_CALLS]time.now[CALL_ID]abcDEF123[ARGS]{}',
        "",
        [_BERLIN, _NOW],
    ),
    Transcript(
        "mistral",
        '[TOOL_CALLS]save_file-2[ARGS]{"text": "[TOOL_CALLS]"}',
        "",
        [("save_file-2", {"text": "[TOOL_CALLS]"})],
    ),
    Transcript("mistral", '[TOOL_CALLS]nobody{"a": 1} x', '[TOOL_CALLS]nobody{"a": 1} x', []),
    Transcript("mistral", '[TOOL_CALLS][{"name": "time.now", "arguments": {}}, oops]', ", oops]", [_NOW]),
    Transcript("mistral", "[[TOOL_CALLS]time.now{}", "[", [_NOW]),
)
QWEN3_CODER = (
    Transcript("qwen3_coder", "if a<b: <tool> <functional>", "if a<b: <tool> <functional>", []),
    Transcript(
        "qwen3_coder",
        "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nBerlin\n</parameter>\n<parameter=days>\n"
        "3\n"
        '</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=tags>\n["a", "b"]\n</parameter>\n'
        "<parameter=note>\nnull\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=time.now>\n"
        "</function>\n</tool_call>",
        "I look.",
        [("weather", {"city": "Berlin", "days": 3, "exact": True, "tags": ["a", "b"], "note": None}), _NOW],
    ),
    Transcript(
        "qwen3_coder",
        '<function=save_file-2><parameter=text>\n\n  a < b "q" \\ é\n</param>\n</parameter></function> ok',
        " ok",
        [("save_file-2", {"text": '\n  a < b "q" \\ é\n</param>'})],
    ),
    Transcript(
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=days>many</parameter>\n<parameter=note>\n12\n</parameter>\n"
        "<parameter=city>\n7\n</parameter>\n</function></tool_call>",
        "",
        [("weather", {"days": "many", "note": "12", "city": "7"})],
    ),
    Transcript(
        "qwen3_coder",
        "<tool_call>\n<function=nobody>\n</function>\n</tool_call>",
        "<tool_call>\n<function=nobody>\n</function>\n</tool_call>",
        [],
    ),
    Transcript(
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nBer",
        "",
        [("weather", '{"city": "Ber')],
    ),
    Transcript(
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=days>\n12",
        "\n12",
        [("weather", '{"days": ')],
    ),
    Transcript("qwen3_coder", "<tool_call>{}", "<tool_call>{}", []),
)
DEEPSEEK = (
    Transcript("deepseek_v3", "plain <｜ text", "plain <｜ text", []),
    Transcript(
        "deepseek_v3",
        "Gut.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Berlin"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time.now\n'
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Gut.",
        [_BERLIN, _NOW],
    ),
    Transcript(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
        f"{_NESTED_JSON}<｜tool▁call▁end｜><｜tool▁call▁begin｜>time.now<｜tool▁sep｜>{{}}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        "",
        [("weather", _NESTED), _NOW],
    ),
    Transcript(
        "deepseek_v31", "<｜tool▁call▁begin｜>time.now<｜tool▁sep｜>{}<｜tool▁call▁end｜>", "", [_NOW]
    ),
    Transcript(
        "deepseek_v3",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city"',
        "",
        [("weather", '{"city"')],
    ),
    Transcript(
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```python\n",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```python\n",
        [],
    ),
)
KIMI = (
    Transcript("kimi_k2", "plain <| text", "plain <| text", []),
    Transcript(
        "kimi_k2",
        "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Berlin"}<|tool_call_end|><|tool_call_begin|>functions.time.now:1'
        "<|tool_call_argument_begin|> {}<|tool_call_end|><|tool_calls_section_end|>",
        "Ok.",
        [_BERLIN, _NOW],
    ),
    Transcript(
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.nobody:0<|tool_call_argument_begin|>{}",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.nobody:0<|tool_call_argument_begin|>{}",
        [],
    ),
    Transcript(
        "kimi_k2", "<|tool_call_begin|>time.now<|tool_call_argument_begin|>{}<|tool_call_end|>", "", [_NOW]
    ),
)
PYTHONIC = (
    Transcript("pythonic", "[1] says: [f(x)]", "[1] says: [f(x)]", []),
    Transcript("pythonic", '[weather(city="Berlin"), time.now()]', "", [_BERLIN, _NOW]),
    Transcript(
        "pythonic",
        "<|python_start|>[weather(city='Zürich \"☂\"\\n', days=-3, tags=[\"a\", '{}'], note=None, "
        "x={'y': [1.5e3, True]})]<|python_end|>",
        "<|python_end|>",
        [("weather", _NESTED)],
    ),
    Transcript("pythonic", 'So:\n```tool_code\nweather(city = "Berlin")\n```', "So:", [_BERLIN]),
    Transcript(
        "pythonic",
        "[weather(city='Berlin', exact=true, note=null)]",
        "",
        [("weather", {"city": "Berlin", "exact": True, "note": None})],
    ),
    Transcript("pythonic", "[weather('Berlin')]", "[weather('Berlin')]", []),
    Transcript(
        "pythonic", "[weather(city=__import__('os'))]", "__import__('os'))]", [("weather", '{"city": ')]
    ),
    Transcript("pythonic", "[nobody(a=1)] and [more]", "[nobody(a=1)] and [more]", []),
    Transcript("pythonic", "[weather(city='Ber", "", [("weather", '{"city": "Ber')]),
    Transcript("pythonic", "[time.now()", "", [_NOW]),
    Transcript("pythonic", "[time.now(), oops", ", oops", [_NOW]),
)
_HARMONY = "<|channel|>commentary to=functions."
HARMONY = (
    Transcript(
        "harmony",
        f'{_HARMONY}weather <|constrain|>json<|message|>{{"city": "Berlin"}}',
        "",
        [_BERLIN],
    ),
    Transcript(
        "harmony",
        f"<|start|>assistant{_HARMONY}time.now<|message|>{{}}<|call|>"
        f"<|start|>assistant{_HARMONY}weather json<|message|>{_NESTED_JSON}",
        "",
        [_NOW, ("weather", _NESTED)],
    ),
    Transcript("harmony", f"{_HARMONY}nobody<|message|>{{}}", f"{_HARMONY}nobody<|message|>{{}}", []),
)
TRANSCRIPTS = (*HARMONY, *HERMES, *LLAMA3, *MISTRAL, *QWEN3_CODER, *DEEPSEEK, *KIMI, *PYTHONIC)
