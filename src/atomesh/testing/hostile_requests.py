"""Requests that mean harm, as bytes and as bodies: FAULTS.md F4. None may do any, whatever it is answered."""

from collections.abc import Iterator, Mapping
from typing import Any

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
TEXT = "/v1/completions"
MANY = 1_000_000
DEEP = 1_000_000
DEPTHS = (100, 400, 900, 3_000)  # some of which a decoder takes, and what comes after it may not
HELLO: tuple[Mapping[str, Any], ...] = ({"role": "user", "content": "hello"},)
_HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
_SMUGGLED = b"GET /workers HTTP/1.1\r\nhost: test\r\n\r\n"
_SMALL = b'{"prompt":"a","max_tokens":1}'

# Which of two lengths holds, where a message ends: a proxy before us may read each otherwise.
AMBIGUOUS: Mapping[str, bytes] = {
    "both lengths": _HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + _SMUGGLED,
    "two lengths": _HEAD + b"content-length: 5\r\ncontent-length: 60\r\n\r\nhello" + _SMUGGLED,
    "a list of lengths": _HEAD + b"content-length: 5, 60\r\n\r\nhello" + _SMUGGLED,
    "a signed length": _HEAD + b"content-length: +5\r\n\r\nhello" + _SMUGGLED,
    "a negative length": _HEAD + b"content-length: -5\r\n\r\nhello" + _SMUGGLED,
    "a length in base 16": _HEAD + b"content-length: 0x5\r\n\r\nhello" + _SMUGGLED,
    "a length beyond 64 bits": _HEAD + b"content-length: 18446744073709551621\r\n\r\nhello" + _SMUGGLED,
    "no length": _HEAD + b"content-length:\r\n\r\nhello" + _SMUGGLED,
    "another coding": _HEAD + b"transfer-encoding: xchunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + _SMUGGLED,
    "chunked not last": _HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + _SMUGGLED,
    "chunked twice": _HEAD
    + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n"
    + _SMUGGLED,
    "a space before the colon": _HEAD + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + _SMUGGLED,
    "a folded line": _HEAD
    + b"transfer-encoding:\r\n chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n"
    + _SMUGGLED,
    "a chunk beyond 64 bits": _HEAD
    + b"transfer-encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n"
    + _SMUGGLED,
    "a negative chunk": _HEAD + b"transfer-encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n" + _SMUGGLED,
    "a chunk without its end": _HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n" + _SMUGGLED,
    "a NUL in a name": _HEAD + b"content-\x00length: 5\r\n\r\nhello" + _SMUGGLED,
    "a NUL in a value": _HEAD + b"x: a\x00b\r\ncontent-length: 5\r\n\r\nhello" + _SMUGGLED,
    "a lone CR": _HEAD + b"x: a\rcontent-length: 60\r\ncontent-length: 5\r\n\r\nhello" + _SMUGGLED,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SMUGGLED,
    "HTTP/0.9": b"GET /live\r\n\r\n" + _SMUGGLED,
    "a body longer than its length": _HEAD + b"content-length: 5\r\n\r\nhello" + _SMALL + b"\r\n\r\n",
}

BROKEN_JSON: Mapping[str, bytes] = {
    "NaN": b'{"prompt":"a","temperature":NaN}',
    "infinity": b'{"prompt":"a","temperature":-Infinity}',
    "a number beyond a float": b'{"prompt":"a","temperature":1e400}',
    "a million digits": b'{"prompt":"a","seed":' + b"9" * MANY + b"}",
    "a million digits after the point": b'{"prompt":"a","temperature":0.' + b"1" * MANY + b"e}",
    "an overlong slash": b'{"prompt":"\xc0\xaf"}',
    "a surrogate in UTF-8": b'{"prompt":"\xed\xa0\x80"}',
    "beyond Unicode": b'{"prompt":"\xf5\x80\x80\x80"}',
    "half a character": b'{"prompt":"a\xe2\x82"}',
    "a byte order mark": b'\xef\xbb\xbf{"prompt":"a"}',
    "UTF-16": '{"prompt":"a"}'.encode("utf-16"),
    "a raw NUL": b'{"prompt":"a\x00b"}',
    "a raw line end": b'{"prompt":"a\nb"}',
    "a lone surrogate": b'{"prompt":"\\ud800"}',
    "half a pair": b'{"prompt":"\\ud800\\u0041"}',
    "lists": b"[" * DEEP,
    "objects": b'{"a":' * DEEP,
    "lists in a prompt": b'{"prompt":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "lists in an unknown field": b'{"prompt":"a","x":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "objects in metadata": b'{"prompt":"a","metadata":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "a list": b"[]",
    "a string": b'"prompt"',
    "nothing": b"null",
    "two": b'{"prompt":"a"}{"prompt":"b"}',
    "a comment": b'{"prompt":"a"/**/}',
    "spaces alone": b" " * MANY,
}


def too_many() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """By what there are too many of: the path that is asked, and the body."""
    ids = list(range(300)) * (MANY // 300)
    for name, value in {
        "stop": ["a"] * MANY,
        "stop_token_ids": [*ids, 10**12],
        "allowed_token_ids": [*ids, -1],
        "bad_words": ["a"] * MANY,
        "logit_bias": {str(number): 1 for number in range(MANY)},
    }.items():
        yield name, TEXT, {"prompt": "a", name: value}
        yield f"{name} of a chat", CHAT, {"messages": HELLO, name: value}
    yield "prompts", TEXT, {"prompt": ["a"] * MANY}
    yield "token ids", TEXT, {"prompt": [1] * MANY}
    yield "prompts of ids", TEXT, {"prompt": [[1]] * MANY}
    yield "messages", CHAT, {"messages": [{"role": "user", "content": ""}] * (MANY // 4)}
    yield (
        "parts",
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * (MANY // 4)}]},
    )
    yield "characters", CHAT, {"messages": [{"role": "user", "content": "a" * 15 * 2**20}]}
    yield "of a role's characters", CHAT, {"messages": [{"role": "r" * MANY, "content": "a"}]}
    yield "of a model's characters", CHAT, {"messages": HELLO, "model": "m" * MANY}
    yield "choices", TEXT, {"prompt": "a", "n": 10**9}
    yield "fields", TEXT, {"prompt": "", **{f"f{number}": 1 for number in range(MANY // 4)}}
    yield "blocks of a message", MESSAGES, _message([{"type": "text", "text": "a"}] * (MANY // 4))
    yield "stop sequences", MESSAGES, {**_message("a"), "stop_sequences": ["a"] * MANY}
    yield "items", RESPONSES, {"input": [{"role": "user", "content": ""}] * (MANY // 4)}
    yield "kinds to include", RESPONSES, {"input": "a", "include": ["a"] * MANY}
    yield "keys of metadata", RESPONSES, {"input": "a", "metadata": {f"k{n}": "v" for n in range(MANY // 4)}}


def nested() -> Iterator[tuple[str, str, bytes]]:
    """JSON within JSON, wherever a request may have some."""
    for depth in DEPTHS:
        deep = b'{"a":' * depth + b"1" + b"}" * depth
        lists = b"[" * depth + b"]" * depth
        blocks = b'{"type":"tool_result","tool_use_id":"t","content":[' * depth + b"]}" * depth
        hello = b'"messages":[{"role":"user","content":"hello"}],"max_tokens":2'
        function = b'{"type":"function","function":{"name":"f","parameters":%b}}' % deep
        call = b'{"id":"c","type":"function","function":{"name":"f","arguments":%b}}'
        text = b'"%b"' % deep.replace(b'"', b'\\"')
        for name, path, body in (
            ("a tool's parameters", CHAT, b'{%b,"tools":[%b]}' % (hello, function)),
            (
                "variables of the template",
                CHAT,
                b'{%b,"chat_template_kwargs":{"enable_thinking":%b}}' % (hello, deep),
            ),
            (
                "a call's arguments",
                CHAT,
                b'{"messages":[{"role":"assistant","tool_calls":[%b]}]}' % (call % text),
            ),
            (
                "a call's arguments, no text",
                CHAT,
                b'{"messages":[{"role":"assistant","tool_calls":[%b]}]}' % (call % deep),
            ),
            ("a schema", CHAT, b'{%b,"structured_outputs":{"json":%b}}' % (hello, deep)),
            ("a schema as text", CHAT, b'{%b,"structured_outputs":{"json":%b}}' % (hello, text)),
            ("metadata", CHAT, b'{%b,"metadata":%b}' % (hello, lists)),
            ("an unknown field", TEXT, b'{"prompt":"a","max_tokens":1,"x":%b}' % lists),
            ("blocks", MESSAGES, b'{"max_tokens":2,"messages":[{"role":"user","content":[%b]}]}' % blocks),
            ("a tool's schema", MESSAGES, b'{%b,"tools":[{"name":"f","input_schema":%b}]}' % (hello, deep)),
            (
                "a call's input",
                MESSAGES,
                b'{"max_tokens":2,"messages":[{"role":"assistant","content":'
                b'[{"type":"tool_use","id":"t","name":"f","input":%b}]}]}' % deep,
            ),
            (
                "a format",
                RESPONSES,
                b'{"input":"a","text":{"format":{"type":"json_schema","name":"x","schema":%b}}}' % deep,
            ),
            (
                "a function",
                RESPONSES,
                b'{"input":"a","tools":[{"type":"function","name":"f","parameters":%b}]}' % deep,
            ),
        ):
            yield f"{name}, {depth} deep", path, body


def _message(content: object) -> dict[str, Any]:
    return {"max_tokens": 2, "messages": [{"role": "user", "content": content}]}
