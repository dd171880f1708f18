"""`atomesh models`: what can be had by name, and what is here."""

import json as json_module
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from atomesh.cli import environment
from atomesh.model_files.catalog import DEFAULT_MODEL, ListedModel, list_models


def models(*, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """List the models that can be served by name, and those that are here already.

    Parameters
    ----------
    json
        Write one JSON document to stdout instead of a table.
    """
    home = environment.home()
    listed = list_models(home)
    if json:
        print(json_module.dumps({"home": str(home), "models": [_as_json(model) for model in listed]}))
    else:
        _print_table(listed)
    return 0


def _as_json(model: ListedModel) -> dict[str, object]:
    return {
        "name": model.name,
        "description": model.description,
        "license": model.license,
        "bytes": model.num_bytes,
        "path": None if model.path is None else str(model.path),
        "default": model.name == DEFAULT_MODEL,
    }


def _print_table(listed: tuple[ListedModel, ...]) -> None:
    table = Table("name", "size", "license", "here", "description", box=None)
    for model in listed:
        mark = " (default)" if model.name == DEFAULT_MODEL else ""
        table.add_row(
            model.name + mark,
            f"{model.num_bytes / 1e6:.0f} MB",
            model.license,
            "no" if model.path is None else "yes",
            model.description,
        )
    Console().print(table)
