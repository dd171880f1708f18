"""The tiny model with tags for thoughts in its vocabulary, and a chat template that opens them."""

from pathlib import Path

import orjson
from tokenizers import AddedToken

from atomesh.testing.tiny_model import write_tiny_model
from atomesh.testing.tiny_tokenizer import CHAT_TEMPLATE, VOCABULARY_SIZE, tiny_tokenizer, tokenizer_config

THINK, END_THINK = VOCABULARY_SIZE, VOCABULARY_SIZE + 1
_OPENING = (
    "{{ '<think>\n' if enable_thinking is not defined or enable_thinking else '<think>\n\n</think>\n\n' }}"
)
TEMPLATE = f"{CHAT_TEMPLATE}{{% if add_generation_prompt %}}{_OPENING}{{% endif %}}"


def write_thinking_model(directory: Path, *, opens: bool = True) -> Path:
    """As `write_tiny_model`, with two tokens more; one that does not open leaves the first tag to the model.

    The tags are no special tokens, as in Qwen3's vocabulary.
    """
    write_tiny_model(directory, vocab_size=VOCABULARY_SIZE + 2)
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in ("<think>", "</think>")])
    tokenizer.save(str(directory / "tokenizer.json"))
    template = TEMPLATE if opens else f"{CHAT_TEMPLATE}{{# <think> #}}"
    config = {**tokenizer_config(), "chat_template": template}
    (directory / "tokenizer_config.json").write_bytes(orjson.dumps(config))
    return directory
