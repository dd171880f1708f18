"""A tiny BPE tokenizer as SentencePiece's (Llama 2, Gemma): pieces with '▁' for spaces, byte fallback."""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from atomesh.testing.tiny_corpus import CORPUS

SPECIAL_PIECES = ("<unk>", "<s>", "</s>")
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))
UNK_PIECE_ID, BOS_PIECE_ID, EOS_PIECE_ID = 0, 1, 2
NUM_MERGES = 125


def tiny_sentencepiece() -> Tokenizer:
    """3 special pieces, 256 bytes, 125 merged pieces, then the corpus' characters: SentencePiece's order.

    A piece may be merged from any two known pieces, as SentencePiece's algorithm allows.
    """
    merges = _train_merges()
    pieces = [*SPECIAL_PIECES, *BYTE_PIECES, *dict.fromkeys(left + right for left, right in merges)]
    pieces += sorted({character for text in CORPUS for character in text.replace(" ", "▁")} - set(pieces))
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)  # noqa: S106
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(
        [AddedToken(piece, special=True, normalized=False) for piece in SPECIAL_PIECES]
    )
    return tokenizer


def sentencepiece_config() -> dict[str, object]:
    """tokenizer_config.json of the tiny SentencePiece tokenizer."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }


def _train_merges() -> list[tuple[str, str]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    characters = {character for text in CORPUS for character in text.replace(" ", "▁")}
    trainer = trainers.BpeTrainer(vocab_size=len(characters) + NUM_MERGES, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    known = {piece for piece, _ in pieces}
    return [split for piece, _ in pieces if len(piece) > 1 for split in _splits(piece, known)]


def _splits(piece: str, known: set[str]) -> list[tuple[str, str]]:
    pairs = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
    return [pair for pair in pairs if pair[0] in known and pair[1] in known]
