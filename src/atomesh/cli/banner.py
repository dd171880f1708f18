"""What `atomesh serve` says to the one who started it."""

import json
from dataclasses import dataclass

from atomesh import __version__


@dataclass(frozen=True, slots=True)
class Ready:
    url: str
    model: str
    seconds: float
    needs_key: bool
    pid: int


def print_starting(url: str, as_json: bool) -> None:
    if not as_json:
        print(f"ATOMesh {__version__} starts on {url}", flush=True)


def print_ready(ready: Ready, as_json: bool) -> None:
    print(_json(ready) if as_json else _text(ready), flush=True)


def _json(ready: Ready) -> str:
    return json.dumps(
        {
            "url": ready.url,
            "model": ready.model,
            "ready_s": round(ready.seconds, 3),
            "pid": ready.pid,
            "version": __version__,
        }
    )


def _text(ready: Ready) -> str:
    key = " \\\n    -H 'authorization: Bearer YOUR_KEY'" if ready.needs_key else ""
    body = json.dumps({"model": ready.model, "messages": [{"role": "user", "content": "Hello!"}]})
    return f"""{ready.model} is ready in {ready.seconds:.1f} s

  curl {ready.url}/v1/chat/completions -H 'content-type: application/json'{key} \\
    -d '{body}'

  or talk to it: atomesh chat --url {ready.url}
  Ctrl-C stops it."""
