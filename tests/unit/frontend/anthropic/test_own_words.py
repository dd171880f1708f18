"""Whose words a refusal is in."""

import pytest

from atomesh.errors import ContextLengthError, InvalidRequestError
from atomesh.frontend.anthropic.own_words import in_own_words, own_words


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("tools[3].function.name is 'a b'", "tools[3].name is 'a b'"),
        ("tools[3].function.parameters.properties.a is", "tools[3].input_schema.properties.a is"),
        ("response_format cannot be obeyed", "output_config.format cannot be obeyed"),
        ("response_format.json_schema.schema is", "output_config.format.schema is"),
        ("tool_choice is 'required', but", "tool_choice.type is 'any', but"),
        ("stop has 65 strings; stop it", "stop_sequences has 65 strings; stop it"),
        ("stop_token_ids is", "stop_token_ids is"),
        ("a stop string is", "a stop string is"),
        ("max_tokens is 0", "max_tokens is 0"),
    ],
)
def test_the_path_at_the_beginning_is_the_client_s(theirs: str, ours: str) -> None:
    assert own_words(theirs) == ours


def test_a_refusal_stays_what_it_is() -> None:
    with pytest.raises(InvalidRequestError) as caught, in_own_words():
        raise InvalidRequestError("stop has 65 strings", param="stop")
    assert (caught.value.message, caught.value.param) == ("stop_sequences has 65 strings", "stop_sequences")
    with pytest.raises(ContextLengthError) as overflow, in_own_words():
        raise ContextLengthError("too long", param="messages")
    assert overflow.value.code == "context_length_exceeded"
