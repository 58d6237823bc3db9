"""Steps of `transformers`' generate(): prefill and decode, without a change to the program.

A step begins when the inputs of a forward pass are prepared, and ends when its output is taken up. Work on a device may
still run by then: there it ends when the next inputs are asked for, since the program has read the tokens by then.

Counts are those of what is computed: a padded batch counts whole, each beam is a sequence, and tokens that are computed
again without a cache are context tokens, as in a prefill.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from types import FunctionType

from .covering import like
from .step_names import MAX_COUNT, MAX_SUM, step_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .install import Agent
    from .steps import OpenStep, Steps

HOOK = "transformers generate"
PREPARE, UPDATE = "prepare_inputs_for_generation", "_update_model_kwargs_for_generation"
_INPUTS = ("input_ids", "decoder_input_ids", "inputs_embeds")


def install(agent: Agent, utils: Any) -> None:
    """Cover `GenerationMixin`, once."""
    version = getattr(sys.modules.get("transformers"), "__version__", None)
    if isinstance(version, str):
        agent.process.note("versions", transformers=version)
    mixin = getattr(utils, "GenerationMixin", None)
    missing = next((name for name in ("generate", PREPARE, UPDATE) if not callable(getattr(mixin, name, None))), None)
    if mixin is None or missing is not None:
        agent.process.hook(HOOK, "missing", f"transformers.generation.utils.GenerationMixin.{missing} is not there")
        return
    if not hasattr(mixin.generate, "_spyreprof"):
        _Hook(agent).cover_generate(mixin)
        agent.process.hook(HOOK, "ok")


class _Call:
    """One outermost call of generate()."""

    __slots__ = ("computed", "embedded", "preparing", "prompt_tokens", "requests", "sampled", "step")

    def __init__(self, requests: list[dict[str, Any]], prompt_tokens: int | None) -> None:
        self.requests = requests
        # Length of the prompt where the result begins with it.
        self.prompt_tokens = prompt_tokens
        # A token has been chosen: the prompt is behind.
        self.sampled = False
        # Tokens of a prompt computed so far, chunk by chunk; those of it that came as embeddings and have no ids.
        self.computed = 0
        self.embedded = 0
        self.step: OpenStep | None = None
        # The method of a class may call that of its base, which is covered too.
        self.preparing = False


class _Hook:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._steps: Steps = agent.steps
        # Known by now, for the library has imported torch; a local of what Dynamo traces, where it is a constant.
        self._is_compiling = self._steps.is_compiling
        # Made now and not at the first call: two threads that call at once would each make its own.
        self._requests = agent.requests
        self._failed = False
        self._covered: set[type] = set()
        # The call under way; a nested one, such as that of an assistant model, is hidden behind None.
        self._call: ContextVar[_Call | None] = ContextVar("spyreprof_generate", default=None)
        self._inside: ContextVar[bool] = ContextVar("spyreprof_inside_generate", default=False)

    def cover_generate(self, mixin: Any) -> None:
        original = mixin.generate
        hook, is_compiling = self, self._is_compiling

        def generate(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling() or hook._failed:
                return original(self, *arguments, **keywords)
            call = None if hook._inside.get() else hook._begin(self, arguments, keywords)
            inside, current = hook._inside.set(True), hook._call.set(call)
            result, ended = None, False
            try:
                result = original(self, *arguments, **keywords)
                ended = True
                return result
            finally:
                hook._call.reset(current)
                hook._inside.reset(inside)
                if call is not None:
                    hook._end(call, result, ended)

        _cover(mixin, "generate", generate, original)

    def _cover_model(self, model_class: type) -> None:
        """Cover the methods of a model's class and its bases, wherever they are defined."""
        self._covered.add(model_class)
        for owner in model_class.__mro__:
            for name, covering in ((PREPARE, self._covering_prepare), (UPDATE, self._covering_update)):
                original = owner.__dict__.get(name)
                if original is None or hasattr(original, "_spyreprof"):
                    continue
                if not isinstance(original, FunctionType):
                    # A static method, say: covered as a method it would be called with one argument too many.
                    raise TypeError(name)
                _cover(owner, name, covering(original), original)

    def _covering_prepare(self, original: Any) -> Callable[..., Any]:
        hook, is_compiling = self, self._is_compiling

        def prepare_inputs_for_generation(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling():
                return original(self, *arguments, **keywords)
            call = hook._call.get()
            if call is None or call.preparing or hook._failed:
                return original(self, *arguments, **keywords)
            hook._prepare_begins(call)
            call.preparing = True
            try:
                inputs = original(self, *arguments, **keywords)
            finally:
                call.preparing = False
            hook._prepared(call, arguments, keywords, inputs)
            return inputs

        return prepare_inputs_for_generation

    def _covering_update(self, original: Any) -> Callable[..., Any]:
        hook, is_compiling = self, self._is_compiling

        def _update_model_kwargs_for_generation(self: Any, outputs: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling():
                return original(self, outputs, *arguments, **keywords)
            call = hook._call.get()
            if call is not None and not hook._failed:
                hook._forward_done(call, outputs)
            return original(self, outputs, *arguments, **keywords)

        return _update_model_kwargs_for_generation

    def _begin(self, model: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> _Call | None:
        try:
            if type(model) not in self._covered:
                self._cover_model(type(model))
            requests = self._requests
            rows, tokens = _prompts(arguments, keywords)
            if requests.marked:
                rows = 0
            returned = tokens if _result_holds_prompt(model, keywords) else None
            return _Call([requests.begin(tokens) for _ in range(rows)], returned)
        except Exception as error:
            self._fail(error)
            return None

    def _prepare_begins(self, call: _Call) -> None:
        try:
            self._end_step(call)
            if call.sampled:
                self._first_token(call)
        except Exception as error:
            self._fail(error)

    def _prepared(self, call: _Call, arguments: tuple[Any, ...], keywords: Mapping[str, Any], inputs: Any) -> None:
        try:
            if not call.sampled:
                for row in call.requests:
                    self._requests.mark(row, "ts")
            call.step = self._steps.begin(_name(call, arguments, keywords, inputs), annotate=True)
        except Exception as error:
            self._fail(error)

    def _forward_done(self, call: _Call, outputs: Any) -> None:
        try:
            call.sampled = True
            if _device(outputs) == "cpu":
                self._end_step(call)
        except Exception as error:
            self._fail(error)

    def _end(self, call: _Call, result: Any, ended: bool) -> None:
        try:
            self._end_step(call)
            if not ended:
                for row in call.requests:
                    self._requests.end(row, reason="abort")
                return
            self._first_token(call)
            output = _output_tokens(call, result)
            for row in call.requests:
                self._requests.end(row, output=output)
        except Exception as error:
            self._fail(error)

    def _end_step(self, call: _Call) -> None:
        step, call.step = call.step, None
        if step is not None:
            self._steps.end(step)

    def _first_token(self, call: _Call) -> None:
        for row in call.requests:
            self._requests.mark(row, "tf")

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self._agent.process.hook_failed(HOOK, error)


def _name(call: _Call, arguments: tuple[Any, ...], keywords: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """Spell the step from shapes alone: reading a value may wait for a device."""
    given = next(inputs[name] for name in _INPUTS if inputs.get(name) is not None)
    rows, query = int(given.shape[0]), int(given.shape[1])
    if inputs.get("inputs_embeds") is not None:
        call.embedded = query
    length = _length(call, arguments, keywords, inputs, query)
    if not call.sampled:
        call.computed += query
    tokens = rows * query
    if not call.sampled or keywords.get("use_cache") is False:
        counts = (rows, tokens, rows * length, tokens * length, 0, 0, 0)
        phase = "prefill"
    else:
        counts = (0, 0, 0, 0, rows, tokens, rows * length)
        phase = "decode"
    limits = (MAX_COUNT, MAX_COUNT, MAX_SUM, MAX_SUM, MAX_COUNT, MAX_COUNT, MAX_SUM)
    return step_name("generate", phase, [n if n <= most else None for n, most in zip(counts, limits, strict=True)])


def _length(
    call: _Call, arguments: tuple[Any, ...], keywords: Mapping[str, Any], inputs: Mapping[str, Any], query: int
) -> int:
    """Length of each sequence after the step, padding included."""
    # The mask of a decoder with an encoder is the encoder's.
    mask = keywords.get("attention_mask") if inputs.get("decoder_input_ids") is None else None
    if mask is not None and getattr(mask, "ndim", 0) == 2:
        return int(mask.shape[-1])
    ids = arguments[0] if arguments else keywords.get("input_ids")
    known = int(ids.shape[-1]) if ids is not None else 0
    if not call.sampled and known <= query:
        return call.computed + query  # a chunk of the prompt, which may be all of it
    return max(known + call.embedded, query)


def _prompts(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[int, int | None]:
    """Number of prompts and their padded length; 0 where they are not text."""
    given = [arguments[0]] if arguments else []
    given += [keywords.get(name) for name in ("inputs", "input_ids")]
    prompt, dimensions = next((tensor for tensor in given if tensor is not None), None), 2
    if prompt is None:
        prompt, dimensions = keywords.get("inputs_embeds"), 3
    shape: tuple[int, ...] = tuple(getattr(prompt, "shape", ()))
    if len(shape) != dimensions:
        return 0, None
    return int(shape[0]), int(shape[1])


def _output_tokens(call: _Call, result: Any) -> int | None:
    """Tokens that a single request got; those of a batch may have ended at different lengths."""
    shape: tuple[int, ...] = tuple(getattr(getattr(result, "sequences", result), "shape", ()))
    if call.prompt_tokens is None or len(call.requests) != 1 or len(shape) != 2 or shape[0] != 1:
        return None
    return max(int(shape[1]) - call.prompt_tokens, 0)


def _result_holds_prompt(model: Any, keywords: Mapping[str, Any]) -> bool:
    """Tell whether generate() returns the prompt with its continuation."""
    encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return not encoder_decoder and keywords.get("inputs_embeds") is None


def _device(outputs: Any) -> str:
    logits = getattr(outputs, "logits", None)
    return str(logits.device.type) if logits is not None else "cpu"


def _cover(owner: Any, name: str, function: Any, original: Any) -> None:
    # transformers asks for signatures, and for the names of methods.
    like(function, original)
    function._spyreprof = True
    setattr(owner, name, function)
