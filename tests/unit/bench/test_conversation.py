import pytest

from atomesh.bench.completion_stream import Completion, OutputChunk
from atomesh.bench.conversation import ChatParams, Conversation, printable, speed_line


def completion(*, tokens: int, finish: str = "stop", usage: bool = True) -> Completion:
    return Completion((OutputChunk(1.5, 1),), 1.5, 3.5, finish, 9, tokens, usage)


def test_a_question_is_sent_after_all_that_was_said() -> None:
    conversation = Conversation(system="be brief")
    conversation.remember("a?", "a.")

    assert conversation.messages_with("b?") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "a."},
        {"role": "user", "content": "b?"},
    ]


def test_asking_alone_is_not_remembered() -> None:
    conversation = Conversation()
    conversation.messages_with("a?")

    assert conversation.messages_with("b?") == [{"role": "user", "content": "b?"}]


def test_a_reset_keeps_the_system_message() -> None:
    conversation = Conversation(system="be brief")
    conversation.remember("a?", "a.")
    conversation.reset()

    assert [message["role"] for message in conversation.messages_with("b?")] == ["system", "user"]


def test_only_what_was_given_is_asked_of_the_server() -> None:
    assert ChatParams("m").body([]) == {
        "model": "m",
        "messages": [],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body = ChatParams("m", temperature=0.0, top_p=0.9, max_tokens=5).body([])
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.0, 0.9, 5)


@pytest.mark.parametrize(
    ("done", "line"),
    [
        (completion(tokens=21), "21 tokens · 10.0 tokens/s · first token after 0.50 s"),
        (completion(tokens=1), "1 token · first token after 0.50 s"),
        (completion(tokens=3, usage=False), "about 3 tokens · 1.0 tokens/s · first token after 0.50 s"),
        (
            completion(tokens=21, finish="length"),
            "21 tokens · 10.0 tokens/s · first token after 0.50 s · cut at the length limit",
        ),
    ],
)
def test_the_speed_of_an_answer(done: Completion, line: str) -> None:
    assert speed_line(done, asked_s=1.0) == line


def test_a_model_cannot_drive_the_terminal() -> None:
    assert printable("a\x1b[2J\x07\r\x9b31mb\x7f") == "a[2J31mb"
    assert printable("tab\t, line\n, ä, 猫") == "tab\t, line\n, ä, 猫"
