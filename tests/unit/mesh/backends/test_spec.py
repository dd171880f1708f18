import pytest

from atomesh.errors import ConfigurationError
from atomesh.mesh.backends.event_source import EventSource
from atomesh.mesh.backends.spec import BackendSpec, parse_backend

VARIABLES = {"LAB_KEY": "sk-lab"}


def parse(text: str) -> BackendSpec:
    return parse_backend(text, VARIABLES.get)


def test_all_of_it() -> None:
    text = "https://lab.example:8443/v1/,kind=sglang,role=prefill,model=/m/x.gguf,key-env=LAB_KEY,bootstrap-port=9"

    assert parse(text) == BackendSpec(
        "https://lab.example:8443", "sglang", "prefill", "/m/x.gguf", "sk-lab", bootstrap_port=9
    )


def test_events_with_and_without_a_replay() -> None:
    both = parse("http://h,kind=vllm,events=tcp://h:5557,replay=tcp://[::1]:5558,salts=none")
    assert both.events == EventSource("tcp://h:5557", "tcp://[::1]:5558", is_unsalted=True)
    assert parse("http://h,kind=sglang,events=ipc:///run/kv").events == EventSource("ipc:///run/kv")
    assert parse("http://h,kind=vllm").events is None


def test_little_of_it() -> None:
    assert parse("http://[::1]:8000,kind=vllm") == BackendSpec("http://[::1]:8000", "vllm")


def test_the_key_is_not_shown() -> None:
    assert "sk-lab" not in repr(parse("http://h,kind=openai,key-env=LAB_KEY"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://h", "kind=vllm|sglang|openai"),
        ("http://h,kind=llama", "'llama'"),
        ("http://h,kind=vllm,role=parked", "role=prefill|decode|unified"),
        ("http://h,kind=openai,role=decode", "unified"),
        ("ftp://h,kind=vllm", "http://HOST:PORT"),
        ("h:8000,kind=vllm", "http://HOST:PORT"),
        ("http://h:99999,kind=vllm", "http://HOST:PORT"),
        ("http://u:secret@h,kind=vllm", "environment variable"),
        ("http://h,kind=vllm,key-env=NONE", "'NONE' holds no key"),
        ("http://h,kind=vllm,port=9", "'port=9'"),
        ("http://h,kind=openai,events=tcp://h:5557", "kind=vllm|sglang"),
        ("http://h,kind=vllm,replay=tcp://h:5558", "events=tcp://HOST:PORT"),
        ("http://h,kind=vllm,salts=none", "events=tcp://HOST:PORT"),
        ("http://h,kind=vllm,events=tcp://h:5557,salts=some", "salts=none"),
        ("http://h,kind=vllm,events=tcp://*:5557", "the host that this gateway reaches it at"),
        ("http://h,kind=vllm,events=h:5557", "write tcp://HOST:PORT"),
        ("http://h,kind=vllm,events=tcp://h", "write tcp://HOST:PORT"),
        ("http://h,kind=vllm,events=tcp://h:99999", "write tcp://HOST:PORT"),
        ("http://h,kind=vllm,events=tcp://h:5557,replay=tcp://h:5558/x", "replay is"),
        ("http://h,kind=sglang,bootstrap-port=0", "between 1 and 65535"),
        ("http://h,kind=openai,slots=0", "between 1 and 4096"),
        ("http://h,kind=vllm,slots=3", "slots is for kind=openai"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(text)

    assert words in caught.value.message
    assert "secret" not in caught.value.message
