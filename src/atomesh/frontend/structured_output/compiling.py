"""Grammars are compiled before anything runs: what cannot be obeyed is refused, and never ignored."""

from typing import TYPE_CHECKING

from llguidance import LLMatcher

from atomesh.errors import InvalidRequestError
from atomesh.frontend.structured_output.asked_grammar import AsksForGrammar, asked_grammar
from atomesh.grammars.limits import MAX_SOURCE_BYTES, parser_limits
from atomesh.grammars.source import grammar_text
from atomesh.protocol.grammar import GrammarSpec

if TYPE_CHECKING:
    from atomesh.frontend.context import Frontend
    from atomesh.frontend.served_model import ServedModel


async def compile_grammar(
    frontend: "Frontend", model: "ServedModel", spec: GrammarSpec, param: str
) -> GrammarSpec:
    """`spec`, once it is known that `model`'s answers can obey it; it came in, or for, the field `param`.

    Compiled away from the event loop, under limits of time and memory. Raises InvalidRequestError, which
    names the keyword that is not supported, or the limit, and ServiceUnavailableError when too many wait.
    """
    size = len(spec.source.encode("utf-8", "surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        raise InvalidRequestError(
            f"{param} has a grammar of {size} bytes; the limit is {MAX_SOURCE_BYTES}: simplify it",
            param=param,
        )
    found = await frontend.texts.run_in_thread(size, lambda: _find_fault(spec))
    if found:
        raise InvalidRequestError(f"{param} cannot be obeyed: {found}", param=param)
    return spec


async def requested_grammar(
    frontend: "Frontend", model: "ServedModel", fields: AsksForGrammar
) -> GrammarSpec | None:
    """What `response_format` or `structured_outputs` ask for, compiled. Raises as `compile_grammar`."""
    asked = asked_grammar(fields)
    return None if asked is None else await compile_grammar(frontend, model, *asked)


def _find_fault(spec: GrammarSpec) -> str:
    try:
        return LLMatcher.validate_grammar(grammar_text(spec), limits=parser_limits())
    except ValueError as error:
        return str(error)
