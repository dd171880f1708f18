"""Grammars are compiled before anything runs: what cannot be obeyed is refused, and never ignored."""

from typing import TYPE_CHECKING, Protocol

from atomesh.errors import InvalidRequestError
from atomesh.frontend.structured_output.asked_grammar import AsksForGrammar, asked_grammar
from atomesh.frontend.structured_output.grammar_checker import GrammarChecker
from atomesh.grammars.size import check_size
from atomesh.protocol.grammar import GrammarSpec

if TYPE_CHECKING:
    from atomesh.frontend.served_model import ServedModel


class ChecksGrammars(Protocol):
    """The frontend."""

    @property
    def grammars(self) -> GrammarChecker: ...


async def compile_grammar(
    frontend: ChecksGrammars, model: "ServedModel", spec: GrammarSpec, param: str
) -> GrammarSpec:
    """`spec`, once it is known that `model`'s answers can obey it; it came in, or for, the field `param`.

    Compiled away from the event loop, under limits of time and memory. Raises InvalidRequestError, which
    names the keyword that is not supported, or the limit, and ServiceUnavailableError when too many wait.
    """
    try:
        check_size(spec)
    except InvalidRequestError as error:
        fault = error.message
    else:
        description = model.service.describe()
        fault = await frontend.grammars.find_fault(spec, model.tokenizer, description)
    if fault:
        raise InvalidRequestError(f"{param} cannot be obeyed: {fault}", param=param)
    return spec


async def requested_grammar(
    frontend: ChecksGrammars, model: "ServedModel", fields: AsksForGrammar
) -> GrammarSpec | None:
    """What `response_format` or `structured_outputs` ask for, compiled. Raises as `compile_grammar`."""
    asked = asked_grammar(fields)
    return None if asked is None else await compile_grammar(frontend, model, *asked)
