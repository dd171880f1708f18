"""What one grammar may cost: to be compiled, and in each step that obeys it."""

from llguidance import LLParserLimits


def parser_limits() -> LLParserLimits:
    """The same wherever a grammar is compiled, so that what was checked also runs.

    What a step may cost was chosen so that the worst grammars hold up their neighbours for 40 ms.
    """
    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=30_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )
