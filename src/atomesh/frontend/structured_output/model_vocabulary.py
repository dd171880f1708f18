"""The tokens of a model on this machine, as its grammars need them."""

from typing import TYPE_CHECKING

from atomesh.frontend.text.tokenizer import load_tokenizer
from atomesh.grammars.vocabulary import Vocabulary, vocabulary_of

if TYPE_CHECKING:
    from atomesh.frontend.text.tokenizer import Tokenizer
    from atomesh.model_files.checkpoint import Checkpoint


def load_vocabulary(checkpoint: "Checkpoint", tokenizer: "Tokenizer | None" = None) -> Vocabulary:
    """Raises ModelFileError for a model without a tokenizer that we can use."""
    config = checkpoint.config
    return vocabulary_of(tokenizer or load_tokenizer(checkpoint), config.vocab_size, config.eos_token_ids)
