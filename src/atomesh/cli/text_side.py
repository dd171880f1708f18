"""What the gateway reads of a model's files, as its flags say."""

from pathlib import Path

from atomesh.cli.flags import GatewayFlags
from atomesh.frontend.reasoning.dialects import find_reasoning_dialect
from atomesh.frontend.sampling_defaults import read_sampling_defaults
from atomesh.frontend.templates.chat_template import load_chat_template
from atomesh.frontend.text.tokenizer import load_tokenizer
from atomesh.frontend.tool_calls.registry import find_tool_dialect
from atomesh.mesh.gateway.served_models import TextSide
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.worker import ModelDescription


def read_text_side(model: ModelDescription, flags: GatewayFlags) -> TextSide:
    """Takes seconds for a large vocabulary. Raises ModelFileError."""
    checkpoint = open_checkpoint(Path(model.path))
    template = load_chat_template(checkpoint, flags.chat_template)
    texts = () if template is None else template.texts
    return TextSide(
        tokenizer=load_tokenizer(checkpoint),
        chat_template=template,
        sampling_defaults=read_sampling_defaults(checkpoint),
        reasoning_dialect=find_reasoning_dialect(texts, flags.reasoning_parser),
        tool_dialect=flags.tool_call_parser or find_tool_dialect(texts),
    )
