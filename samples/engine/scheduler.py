"""Continuous batching: before every step, decide which requests compute how many tokens.

There is no separate prefill and decode mode. Every request has `num_tokens` known tokens, of which
`num_computed_tokens` are in the KV cache; a step computes some of the rest. A long prompt is cut into
chunks by the token budget of the step, and a decode is the special case where one token is left. No torch
in here.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .kv_cache import ROOT_HASH, BlockPool, hash_block
from .vocabulary import END_THINK_TOKEN_ID, THINK_TOKEN_ID


@dataclass(eq=False)
class Request:
    """One completion request and its state. Times are `time.perf_counter()` seconds."""

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    eos_token_id: int | None = None
    """Ends the output when sampled; None generates `max_tokens` tokens whatever they are."""
    num_thinking_tokens: int | None = None
    """The output begins with so many tokens of thinking between their markers; None: with the answer."""

    token_ids: list[int] = field(init=False)
    """Prompt and output so far. The last one of a decode is sampled but not yet in the KV cache."""
    num_computed_tokens: int = 0
    num_prefill_tokens: int = field(init=False)
    """Tokens to compute before the next token is sampled: the prompt, after a preemption the output too."""
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_remembered_blocks: int = 0
    num_preemptions: int = 0
    num_lost_tokens: int = 0
    """The first so many tokens were computed once, before a preemption took them."""
    finish_reason: str | None = None
    events: queue.SimpleQueue[tuple[int, str | None]] = field(default_factory=queue.SimpleQueue)
    """Output tokens for the front end, in order, each with the finish reason when it is the last."""

    arrived_s: float = field(default_factory=time.perf_counter)
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)
        self.num_prefill_tokens = len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output so far."""
        return len(self.token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        """Tokens generated so far."""
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def forced_token(self) -> int | None:
        """The marker that is due next, whatever is sampled; None: what is sampled. A random model opens and closes
        no thinking by itself; a trained one is held to its budget in the same way."""
        if self.num_thinking_tokens is None:
            return None
        due = {0: THINK_TOKEN_ID, self.num_thinking_tokens + 1: END_THINK_TOKEN_ID}
        return due.get(len(self.output_token_ids))

    @property
    def num_reasoning_tokens(self) -> int:
        """Output tokens between the markers so far, without them."""
        return max(0, min(len(self.output_token_ids) - 1, self.num_thinking_tokens or 0))

    @property
    def in_prefill(self) -> bool:
        """Whether tokens are left to compute before the next one is sampled."""
        return self.num_computed_tokens < self.num_prefill_tokens

    def hash_full_blocks(self, block_size: int) -> list[bytes]:
        """Hashes of all blocks that the known tokens fill; each is computed once."""
        for start in range(len(self.block_hashes) * block_size, self.num_tokens - block_size + 1, block_size):
            parent = self.block_hashes[-1] if self.block_hashes else ROOT_HASH
            self.block_hashes.append(hash_block(parent, self.token_ids[start : start + block_size]))
        return self.block_hashes


@dataclass(frozen=True)
class ScheduledRequest:
    """A request's part of one step: compute `num_tokens` tokens that follow the first `start` ones."""

    request: Request
    start: int
    num_tokens: int
    is_context: bool
    """Prefill (vLLM says context) or decode (generation)."""

    @property
    def seq_len(self) -> int:
        """Tokens in the KV cache once the step is done; what the last query attends to."""
        return self.start + self.num_tokens

    @property
    def num_recomputed_tokens(self) -> int:
        """Tokens of this part that were computed before, and lost to a preemption."""
        return max(0, min(self.seq_len, self.request.num_lost_tokens) - self.start)

    @property
    def samples(self) -> bool:
        """Whether a token comes out: all known tokens are computed by the end of the step."""
        return self.seq_len == self.request.num_tokens


@dataclass(frozen=True)
class Batch:
    """What one step computes."""

    parts: list[ScheduledRequest]

    @property
    def num_tokens(self) -> int:
        """Tokens over all requests: the rows of every matrix multiplication of the step."""
        return sum(part.num_tokens for part in self.parts)

    def count_tokens(self, is_context: bool) -> int:
        """Tokens of the prefills, or of the decodes."""
        return sum(part.num_tokens for part in self.parts if part.is_context == is_context)

    def annotation(self) -> str:
        """The step's name in a profile: vLLM's detailed step annotation.

        For prefills and for decodes it says how many requests and, with q tokens computed and k tokens
        attended to per request, the sums of q, k, q*q and q*k. Work in matrix multiplications goes with sq;
        KV reads of decodes with sk; attention work of prefills with sqsk.
        """
        context = _sums([part for part in self.parts if part.is_context])
        generation = _sums([part for part in self.parts if not part.is_context])
        return f"execute_{self.num_tokens}_context_{context}_generation_{generation}"


def _sums(parts: Sequence[ScheduledRequest]) -> str:
    sq = sum(part.num_tokens for part in parts)
    sk = sum(part.seq_len for part in parts)
    sqsq = sum(part.num_tokens**2 for part in parts)
    sqsk = sum(part.num_tokens * part.seq_len for part in parts)
    return f"{len(parts)}(sq{sq}sk{sk}sqsq{sqsq}sqsk{sqsk})"


@dataclass
class SchedulerCounters:
    """Totals since start. Prefix cache counts are tokens, and a preempted request is not counted twice."""

    preemptions: int = 0
    recomputed_tokens: int = 0
    """Prefill tokens that had been computed before a preemption."""
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0


class Scheduler:
    """First come, first served, within three limits: requests, tokens per step, and KV blocks."""

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        """In order of admission. Whatever is still in prefill is at the end, so decodes always go first."""
        self.counters = SchedulerCounters()

    def add(self, request: Request) -> None:
        """Queue a request. It must fit the cache alone (the caller checks the maximum model length)."""
        self.waiting.append(request)

    @property
    def has_work(self) -> bool:
        """Whether `schedule` has something to hand out."""
        return bool(self.running or self.waiting)

    def schedule(self) -> Batch:
        """Choose the next step's work: first those that run, then those that wait."""
        parts: list[ScheduledRequest] = []
        budget = self.max_num_batched_tokens

        position = 0
        while position < len(self.running) and budget > 0:
            request = self.running[position]
            num_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            if not self._make_room(request, num_tokens):
                break
            parts.append(_part(request, num_tokens))
            budget -= num_tokens
            position += 1

        # After a preemption nobody is admitted: the victim is first in line, and less is free than it held.
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            admitted = self._admit(self.waiting[0], budget)
            if admitted is None:
                break
            self.waiting.popleft()
            parts.append(admitted)
            budget -= admitted.num_tokens
        return Batch(parts)

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Extend a running request's block table, preempting from the end of the line where blocks are short.

        Returns False when the request itself had to go.
        """
        wanted = self.pool.blocks_for(request.num_computed_tokens + num_tokens) - len(request.block_table)
        while wanted > self.pool.num_free:
            # The youngest loses least work, and cannot be in this step's batch yet: the loop goes from
            # the oldest to the youngest.
            victim = self.running.pop()
            self._preempt(victim)
            if victim is request:
                return False
        request.block_table += self.pool.allocate(wanted)
        return True

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks away. Its keys and values are recomputed later: on most hardware that is
        cheaper than moving them out and back, and blocks that survive in the prefix cache come for free."""
        self._release(request)
        request.num_lost_tokens = max(request.num_lost_tokens, request.num_computed_tokens)
        request.num_computed_tokens = 0
        request.num_prefill_tokens = request.num_tokens
        request.num_preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(request)

    def _admit(self, request: Request, budget: int) -> ScheduledRequest | None:
        """Start a waiting request behind its cached prefix; None when blocks are short."""
        pool = self.pool
        cached: list[int] = []
        if pool.enable_prefix_caching:
            # At least one token must be computed, or there would be nothing to sample the next one from.
            usable = (request.num_tokens - 1) // pool.block_size
            cached = pool.cached_prefix(request.hash_full_blocks(pool.block_size)[:usable])
        num_cached_tokens = len(cached) * pool.block_size

        # All known tokens must fit, although the first chunk may need less: a request that is admitted and
        # then stuck halfway through its prompt would hold blocks that those ahead of it need.
        new_blocks = pool.blocks_for(request.num_tokens) - len(cached)
        free_after_sharing = pool.num_free - sum(pool.is_free(block) for block in cached)
        if new_blocks > free_after_sharing:
            return None

        num_tokens = min(request.num_tokens - num_cached_tokens, budget)
        pool.share(cached)
        request.block_table = cached + pool.allocate(pool.blocks_for(num_cached_tokens + num_tokens) - len(cached))
        request.num_computed_tokens = num_cached_tokens
        request.num_remembered_blocks = len(cached)
        if request.num_preemptions == 0 and pool.enable_prefix_caching:
            self.counters.prefix_cache_queries += request.num_tokens
            self.counters.prefix_cache_hits += num_cached_tokens
        if request.scheduled_s is None:
            request.scheduled_s = time.perf_counter()
        self.running.append(request)
        return _part(request, num_tokens)

    def complete(self, batch: Batch, sampled: Sequence[int]) -> list[Request]:
        """Book a computed step: `sampled` holds one token for each part with `samples`, in order.

        Returns the requests that received a token; those that ended have `finish_reason` set and are out.
        """
        tokens = iter(sampled)
        received: list[Request] = []
        for part in batch.parts:
            request = part.request
            samples = part.samples
            self.counters.recomputed_tokens += part.num_recomputed_tokens
            request.num_computed_tokens = part.seq_len
            self._remember_full_blocks(request)
            if samples:
                token = next(tokens)
                forced = request.forced_token
                token = token if forced is None else forced
                request.token_ids.append(token)
                received.append(request)
                if token == request.eos_token_id:
                    self.finish(request, "stop")
                elif request.num_tokens - len(request.prompt_token_ids) >= request.max_tokens:
                    self.finish(request, "length")
        return received

    def _remember_full_blocks(self, request: Request) -> None:
        if not self.pool.enable_prefix_caching:
            return
        full = request.num_computed_tokens // self.pool.block_size
        if full > request.num_remembered_blocks:
            hashes = request.hash_full_blocks(self.pool.block_size)
            for index in range(request.num_remembered_blocks, full):
                self.pool.remember(request.block_table[index], hashes[index])
            request.num_remembered_blocks = full

    def finish(self, request: Request, reason: str) -> None:
        """Take a request out, wherever it is. Must not be called between `schedule` and `complete`."""
        request.finish_reason = reason
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._release(request)

    def _release(self, request: Request) -> None:
        self.pool.release(request.block_table)
        request.block_table = []
        request.num_remembered_blocks = 0


def _part(request: Request, num_tokens: int) -> ScheduledRequest:
    return ScheduledRequest(request, request.num_computed_tokens, num_tokens, request.in_prefill)
