"""What `atomesh serve` says to the one who started it."""

import json
from dataclasses import asdict, dataclass

from atomesh import __version__
from atomesh.byte_size import format_size
from atomesh.cli.program import program_words
from atomesh.cli.readiness import EngineFacts, ServedFacts
from atomesh.cli.saying import answer


@dataclass(frozen=True, slots=True)
class Ready:
    url: str
    served: ServedFacts
    seconds: float
    needs_key: bool
    pid: int


def print_starting(url: str, as_json: bool) -> None:
    if not as_json:
        answer(f"ATOMesh {__version__} starts on {url}")


def print_ready(ready: Ready, as_json: bool) -> None:
    answer(_json(ready) if as_json else _text(ready))


def _json(ready: Ready) -> str:
    return json.dumps(
        {
            "url": ready.url,
            "model": ready.served.model,
            "engines": [asdict(engine) for engine in ready.served.engines],
            "ready_s": round(ready.seconds, 3),
            "pid": ready.pid,
            "version": __version__,
        }
    )


def _text(ready: Ready) -> str:
    key = " \\\n    -H 'authorization: Bearer YOUR_KEY'" if ready.needs_key else ""
    body = json.dumps({"model": ready.served.model, "messages": [{"role": "user", "content": "Hello!"}]})
    engines = "".join(f"\n  {_engine_line(engine)}" for engine in ready.served.engines)
    return f"""{ready.served.model} is ready in {ready.seconds:.1f} s{engines}

  curl {ready.url}/v1/chat/completions -H 'content-type: application/json'{key} \\
    -d '{body}'

  or talk to it: {program_words()} chat --url {ready.url}
  Ctrl-C stops it."""


def _engine_line(engine: EngineFacts) -> str:
    return (
        f"{engine.dtype}, max_model_len {engine.max_model_len}, KV pool {format_size(engine.kv_bytes)} "
        f"({engine.kv_tokens} tokens) in each worker"
    )
