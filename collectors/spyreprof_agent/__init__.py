"""Tell spyreprof what your engine does: its steps, the parts of its host work, its requests.

For engines whose steps nothing recognises. Under `spyreprof record` a step, a phase or a request costs one to three
microseconds; otherwise nothing happens at all. No call raises, whatever is passed: a wrong argument counts as unknown,
and the recording says so once. Call outside of functions that torch.compile compiles; inside, nothing is recorded.

    import spyreprof_agent

    while scheduler.has_work():
        with spyreprof_agent.phase("schedule"):
            batch = scheduler.next_batch()
        with spyreprof_agent.step("decode", generation_requests=len(batch)):
            tokens = model(batch)
"""

from __future__ import annotations

__all__ = ["Phase", "Request", "Step", "phase", "request", "step"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

# What the recorder and this file agree on; a recorder of another number leaves this file alone.
_PROTOCOL = 1
# Set by the recorder when it enters the process.
_recorder: Any = None


def _recording() -> Any:
    recorder = _recorder
    # The second question is for torch.compile, to which it is a constant.
    return None if recorder is None or recorder.steps.is_compiling() else recorder


class Step:
    """One engine step: a context manager, or `begin()` and `end()`. May be used again once it has ended."""

    __slots__ = ("_counts", "_open", "_phase")

    def __init__(self, phase: str | None, counts: tuple[int | None, ...]) -> None:
        self._phase = phase
        self._counts = counts
        self._open: Any = None

    def begin(self) -> Step:
        """Begin the step now."""
        recorder = _recording()
        if recorder is not None:
            self._open = recorder.begin_step(self._phase, self._counts, self._open)
        return self

    def end(self) -> None:
        """End the step now, in whatever thread."""
        recorder = _recording()
        if recorder is not None:
            opened, self._open = self._open, None
            recorder.end_step(opened)

    def __enter__(self) -> Step:
        return self.begin()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()


class Phase:
    """A named part of the engine's work: a context manager, or `begin()` and `end()`."""

    __slots__ = ("_name", "_open")

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: Any = None

    def begin(self) -> Phase:
        """Begin the part now."""
        recorder = _recording()
        if recorder is not None:
            self._open = recorder.begin_phase(self._name)
        return self

    def end(self) -> None:
        """End the part now."""
        recorder = _recording()
        if recorder is not None:
            opened, self._open = self._open, None
            recorder.end_phase(self._name, opened)

    def __enter__(self) -> Phase:
        return self.begin()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()


class Request:
    """One request: a context manager from its arrival on, or `begin()` and `end()`.

    Leaving the context does not finish a request, since another thread may still work on it; an exception that leaves
    it does, as aborted. What never finishes is recorded without an end.
    """

    __slots__ = ("_cached_tokens", "_max_tokens", "_open", "_prompt_tokens")

    def __init__(self, prompt_tokens: int | None, cached_tokens: int | None, max_tokens: int | None) -> None:
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = cached_tokens
        self._max_tokens = max_tokens
        self._open: Any = None

    def begin(self) -> Request:
        """The request arrived now."""
        recorder = _recording()
        if recorder is not None:
            self._open = recorder.begin_request(self._prompt_tokens, self._cached_tokens, self._max_tokens)
        return self

    def scheduled(self) -> None:
        """The request leaves the queue now. Only the first call counts."""
        recorder = _recording()
        if recorder is not None:
            recorder.mark_request(self._open, "ts")

    def first_token(self) -> None:
        """The first output token is there now. Only the first call counts, so it may stand in a loop."""
        recorder = _recording()
        if recorder is not None:
            recorder.mark_request(self._open, "tf")

    def finished(
        self,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        reasoning_tokens: int | None = None,
        reason: str | None = None,
        preemptions: int | None = None,
    ) -> None:
        """The last output token is there now. Only the first call counts.

        Args:
            output_tokens: tokens generated, reasoning included.
            cached_tokens: prompt tokens that a cache held.
            reasoning_tokens: the part of `output_tokens` that is reasoning.
            reason: "stop", "length", "abort", "error" or "tool_calls"; another text is recorded as "other".
            preemptions: how often the request lost its place in the KV cache and was computed again.
        """
        recorder = _recording()
        if recorder is not None:
            recorder.end_request(self._open, output_tokens, cached_tokens, reasoning_tokens, reason, preemptions)

    def end(self) -> None:
        """The request is over now, and nothing more is known of it."""
        self.finished()

    def __enter__(self) -> Request:
        return self.begin()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc_type is not None:
            self.finished(reason="abort")


def step(  # noqa: PLR0913 - what there is to know of a step
    phase: str | None = None,
    *,
    context_requests: int | None = None,
    context_tokens: int | None = None,
    context_seq_len_sum: int | None = None,
    context_q_k_sum: int | None = None,
    generation_requests: int | None = None,
    generation_tokens: int | None = None,
    generation_seq_len_sum: int | None = None,
    executed_context_tokens: int | None = None,
    executed_generation_requests: int | None = None,
    executed_generation_seq_len_sum: int | None = None,
    speculative_tokens: int | None = None,
) -> Step:
    """Mark one engine step: one pass through the model, with whatever belongs to it.

    A step inside another one of the same thread or asyncio task is part of that one: only the outermost is recorded.
    That holds for annotations of an engine that spyreprof knows, too. A step that ends with an exception is recorded.

    Args:
        phase: "prefill", "decode" or "mixed"; None where the counts tell, or nobody knows. A prefill step generates
            for no request, a decode step computes no prompt: the counts of the other kind are then 0 unless given.
        context_requests: requests whose prompt, or a part of it, is computed in this step. Without this and the
            tokens, the step has a time and a phase, and no more is concluded from it.
        context_tokens: prompt tokens computed in this step.
        context_seq_len_sum: lengths of those requests after this step, in tokens, added up.
        context_q_k_sum: tokens computed times length after this step, added up over those requests.
        generation_requests: requests that get their next token in this step.
        generation_tokens: tokens computed for them, more than one each with speculation; None for one each.
        generation_seq_len_sum: lengths of those requests after this step, in tokens, added up.
        executed_context_tokens: prompt tokens as the device computes them, padding included: whole chunks.
        executed_generation_requests: rows of the decode batch as the device runs it, padding included.
        executed_generation_seq_len_sum: sequence lengths of those rows, padding included: where every row is as long
            as the longest, rows times that length.
        speculative_tokens: the part of `generation_tokens` that a draft proposed and this step verifies.
    """
    counts = (
        context_requests,
        context_tokens,
        context_seq_len_sum,
        context_q_k_sum,
        generation_requests,
        generation_tokens,
        generation_seq_len_sum,
        executed_context_tokens,
        executed_generation_requests,
        executed_generation_seq_len_sum,
        speculative_tokens,
    )
    return Step(phase, counts)


def phase(name: str) -> Phase:
    """Mark a named part of the engine's own work, inside a step or between steps.

    `phase("prefill")` and `phase("decode")` outside of a step are a step of that phase, with unknown counts.

    Args:
        name: "schedule", "prepare", "sample", "detokenize" or any other identifier of at most 32 characters:
            a small letter, then small letters, digits and underscores. Any other name is not recorded.
    """
    return Phase(name)


def request(
    prompt_tokens: int | None = None, *, cached_tokens: int | None = None, max_tokens: int | None = None
) -> Request:
    """Mark one request, from its arrival to its last token.

    Args:
        prompt_tokens: length of the prompt.
        cached_tokens: the part of it that a cache held, where that is known by now; `finished` takes it too.
        max_tokens: the most output tokens that the request allows.
    """
    return Request(prompt_tokens, cached_tokens, max_tokens)
