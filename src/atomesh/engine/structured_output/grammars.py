"""The grammars that one engine can obey: compiled once, and kept for those who ask the same again."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from atomesh.engine.structured_output.prepared import PreparedGrammar
from atomesh.errors import UnsupportedFeatureError
from atomesh.grammars.vocabulary import Vocabulary
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.grammar import GrammarSpec

if TYPE_CHECKING:
    from atomesh.grammars.compiler import GrammarCompiler

KEPT_GRAMMARS = 32


class Grammars(Protocol):
    def is_ready(self, request: GenerationRequest) -> bool:
        """Whether `prepare` would be quick."""
        ...

    def prepare(self, request: GenerationRequest) -> GenerationRequest:
        """The request with its grammar compiled, if it has one; from any thread.

        Raises InvalidRequestError for one that cannot be obeyed.
        """
        ...


class NoGrammars:
    """Of an engine that does not know its model's tokens."""

    def is_ready(self, request: GenerationRequest) -> bool:
        return True

    def prepare(self, request: GenerationRequest) -> GenerationRequest:
        if request.sampling.grammar is None:
            return request
        raise UnsupportedFeatureError(
            "this engine has no tokenizer, so that it cannot constrain an answer; ask without a grammar",
            param="grammar",
        )


class GrammarCache:
    """Implements `Grammars`. `vocabulary` is asked once, for the first grammar."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._load = vocabulary
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._compiler: GrammarCompiler | None = None
        self._eos_ids: tuple[int, ...] = ()
        self._kept: OrderedDict[GrammarSpec, PreparedGrammar] = OrderedDict()

    def is_ready(self, request: GenerationRequest) -> bool:
        grammar = request.sampling.grammar
        return grammar is None or isinstance(grammar, PreparedGrammar) or self._find(grammar) is not None

    def prepare(self, request: GenerationRequest) -> GenerationRequest:
        grammar = request.sampling.grammar
        if grammar is None or isinstance(grammar, PreparedGrammar):
            return request
        prepared = self._find(grammar) or self._compile(grammar)
        return replace(request, sampling=replace(request.sampling, grammar=prepared))

    def _find(self, spec: GrammarSpec) -> PreparedGrammar | None:
        with self._lock:
            found = self._kept.get(spec)
            if found is not None:
                self._kept.move_to_end(spec)
            return found

    def _compile(self, spec: GrammarSpec) -> PreparedGrammar:
        compiler = self._ready_compiler()
        prepared = PreparedGrammar(
            kind=spec.kind,
            source=spec.source,
            begins_after=spec.begins_after,
            matcher=compiler.compile(spec),
            mask_words=-(-compiler.num_ids // 32),
            eos_ids=self._eos_ids,
        )
        with self._lock:
            self._kept[spec] = prepared
            if len(self._kept) > KEPT_GRAMMARS:
                self._kept.popitem(last=False)
        return prepared

    def _ready_compiler(self) -> "GrammarCompiler":
        with self._loading:
            if self._compiler is None:
                from atomesh.grammars.compiler import GrammarCompiler  # llguidance, which most never need

                vocabulary = self._load()
                self._eos_ids = tuple(vocabulary.eos_ids)
                self._compiler = GrammarCompiler(vocabulary)
            return self._compiler
