import pytest
import torch
import transformers

from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.testing.tiny_model import write_tiny_gguf, write_tiny_model
from atomesh.testing.tiny_sentencepiece import tiny_sentencepiece
from atomesh.testing.tiny_tokenizer import tiny_tokenizer

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
TEXTS = ("Hello, world! 123", " two  spaces\n\tand a tab", "Größe 今日は 🙂 \x00", "")


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_finds_every_weight_and_no_other(tmp_path, family):
    write_tiny_model(tmp_path, family)

    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True, dtype=torch.float32
    )

    assert not any(loading.values())
    tied = {"lm_head.weight"} if family == "gemma3" else set()
    assert model.state_dict().keys() == open_checkpoint(tmp_path).tensors.keys() | tied


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_transformers_tokenizes_as_the_file_says(tmp_path, kind):
    write_tiny_model(tmp_path, tokenizer=kind)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = tiny_tokenizer() if kind == "bytes" else tiny_sentencepiece()

    assert len(tokenizer) == open_checkpoint(tmp_path).config.vocab_size
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        assert ids == ours.encode(text).ids
        assert tokenizer.decode(ids) == text


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    first = write_tiny_model(tmp_path / "a", seed=3) / "model.safetensors"
    second = write_tiny_model(tmp_path / "b", seed=3) / "model.safetensors"
    other = write_tiny_model(tmp_path / "c", seed=4) / "model.safetensors"

    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != other.read_bytes()
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (
        tmp_path / "b" / "tokenizer.json"
    ).read_bytes()


def test_greedy_output_varies(tmp_path):
    """A model that repeats one token would hide most faults."""
    for family in FAMILIES:
        write_tiny_model(tmp_path / family, family)
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / family, dtype=torch.float32)
        prompt = torch.tensor([[5, 80, 200, 17, 42]])
        output = model.generate(prompt, max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=2)
        assert len(set(output[0, 5:].tolist())) > 6, family


def test_a_gguf_with_rope_scaling_is_not_written_wrong(tmp_path):
    with pytest.raises(ValueError, match="rope scaling linear is not written"):
        write_tiny_gguf(tmp_path / "x.gguf", rope_scaling={"type": "linear", "factor": 2.0})
