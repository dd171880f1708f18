"""The tiny model with GPT-OSS's marks in its vocabulary, two of which end answers, and a template of them."""

from pathlib import Path

import orjson
from tokenizers import AddedToken

from atomesh.testing.tiny_model import write_tiny_model
from atomesh.testing.tiny_tokenizer import VOCABULARY_SIZE, tiny_tokenizer, tokenizer_config

MARKS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>")
START, END, MESSAGE, CHANNEL, CONSTRAIN, CALL, RETURN = range(VOCABULARY_SIZE, VOCABULARY_SIZE + len(MARKS))
_TEMPLATE = (
    "{{ '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') + '<|end|>' }}"
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for message in messages %}"
    "{{ '<|start|>' + message.role }}{% if message.role == 'assistant' %}{{ '<|channel|>final' }}{% endif %}"
    "{{ '<|message|>' + message.content + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)


def write_harmony_model(directory: Path) -> Path:
    """As `write_tiny_model`, with seven special tokens more."""
    ends = [CALL, RETURN]
    write_tiny_model(directory, vocab_size=VOCABULARY_SIZE + len(MARKS), eos_token_id=ends)
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {**tokenizer_config(), "eos_token": "<|return|>", "chat_template": _TEMPLATE}
    (directory / "tokenizer_config.json").write_bytes(orjson.dumps(config))
    return directory
