"""What a wire suite holds in its hands: a server's URL, a client for it, and, for the double, its strings."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atomesh.testing.byte_tokenizer import END
from atomesh.testing.scripted_service import Script

if TYPE_CHECKING:
    import openai

    from atomesh.frontend.served_model import ServedModel
    from atomesh.testing.app_server import AppServer
    from atomesh.testing.scripted_service import ScriptedService


@dataclass(frozen=True)
class Wire:
    """Any server, known by its base URL alone."""

    url: str
    model: str
    client: "openai.OpenAI"


@dataclass(frozen=True)
class ScriptedWire(Wire):
    server: "AppServer"
    service: "ScriptedService"
    models: "list[ServedModel]"

    def say(self, *texts: str | bytes, ends: bool = True) -> None:
        """Every request's choices say these texts, and end by themselves unless `ends` is false."""
        spoken = [text.encode() if isinstance(text, str) else text for text in texts]
        tokens = [[*text, *([END] if ends else [])] for text in spoken]
        self.service.script = lambda _request: Script(tokens=tokens)
