"""`atomesh`: the command line. Each command's module is imported only when the command runs."""

import re
import sys
from dataclasses import fields

from cyclopts import App, CycloptsError, Parameter

from atomesh import __version__
from atomesh.cli.refusal_pipe import refuse
from atomesh.cli.restart_policy import EX_CONFIG
from atomesh.cli.saying import say
from atomesh.errors import ConfigurationError

COMMANDS = {
    "serve": "Serve a model on this machine, with an OpenAI-compatible API.",
    "chat": "Talk with a model in the terminal.",
    "bench": "Measure any OpenAI-compatible server under load.",
    "models": "List the models that can be served by name.",
    "explain": "Say why an answer came from the workers that it came from.",
    "worker": "Run one engine, for gateways to reach.",
    "gateway": "Serve the API from workers that run elsewhere.",
}

MODEL_IS_POSITIONAL = ("serve", "worker")
EX_USAGE = 2  # as of argparse and getopt: the command line cannot be read


def _show_default(value: object) -> str | None:
    """In help; nothing for what is empty or follows from other things."""
    return None if value is None or value == () else str(value)


app = App(
    name="atomesh",
    help="Serve large language models with prefill and decode apart.",
    version=__version__,
    result_action="return_value",
    print_error=False,
    exit_on_error=False,
    default_parameter=Parameter(negative_iterable=(), show_default=_show_default),
)
for _order, (_name, _help) in enumerate(COMMANDS.items()):
    app.command(f"atomesh.cli.{_name}:{_name}", name=_name, help=_help, sort_key=_order)


def main() -> None:
    try:
        _check_platform()
        _check_model_flag(sys.argv[1:])
        status = app(sys.argv[1:])
    except ConfigurationError as error:
        message = in_flags(error)
        if not refuse(message):
            say(f"atomesh: {message}")
        sys.exit(EX_CONFIG)
    except CycloptsError as error:
        say(f"atomesh: {in_one_line(error)}")
        sys.exit(EX_USAGE)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)


def in_one_line(error: CycloptsError) -> str:
    """What cannot be read of the command line, and where it is explained."""
    command = " ".join(("atomesh", *(error.command_chain or ())))
    return f"{' '.join(str(error).split())} See {command} --help."


def in_flags(error: ConfigurationError) -> str:
    """Its message with the engine's options named as on the command line."""
    if error.param is None:
        return error.message
    from atomesh.cli.flags import EngineFlags

    names = "|".join(field.name for field in fields(EngineFlags))
    return re.sub(rf"\b({names})\b(?= is |$|[;:,]| or )", lambda match: _flag(match[1]), error.message)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_model_flag(words: list[str]) -> None:
    if words[:1] and words[0] in MODEL_IS_POSITIONAL and any(w.split("=")[0] == "--model" for w in words):
        raise ConfigurationError(f"MODEL is no flag but an argument: atomesh {words[0]} MODEL")


def _check_platform() -> None:
    if sys.platform not in ("linux", "darwin"):
        raise ConfigurationError(
            f"ATOMesh runs on Linux and macOS, not on {sys.platform}; try WSL or a container"
        )


if __name__ == "__main__":
    main()
