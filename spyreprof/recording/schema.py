"""What the analyzers are given: tables with units in their column names, and small typed facts beside them.

Column tables are pandas DataFrames. A column that could not be captured is all-missing (pandas NA), never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.findings import Origin
    from spyreprof.trace.health import Fault
    from spyreprof.trace.profiled import ProfiledStep


@dataclass(frozen=True, slots=True)
class Column:
    """A table column: its pandas dtype, how its values came about, and what it means."""

    name: str
    dtype: str
    origin: Origin
    meaning: str


# One row per engine step and writer. Source: `steps` shards (step annotations of the engine).
STEPS: tuple[Column, ...] = (
    Column("start_ns", "int64", "measured", "step start, CLOCK_MONOTONIC"),
    Column("end_ns", "int64", "measured", "step end, CLOCK_MONOTONIC"),
    Column("writer", "string", "measured", "process that ran the step"),
    Column("rank", "Int64", "measured", "rank of the process; NA where unknown"),
    Column("source", "string", "measured", "what marked it: annotation (the engine), api (the program), transformers"),
    Column("context_requests", "Int64", "measured", "requests in prefill in this step"),
    Column("context_tokens", "Int64", "measured", "prompt tokens computed in this step"),
    Column("context_seq_len_sum", "Int64", "measured", "sum of sequence lengths of the prefills"),
    Column("context_q_k_sum", "Int64", "measured", "sum of query x key lengths of the prefills"),
    Column("generation_requests", "Int64", "measured", "requests in decode in this step"),
    Column("generation_tokens", "Int64", "measured", "tokens generated in this step"),
    Column("generation_seq_len_sum", "Int64", "measured", "sum of sequence lengths of the decodes"),
    Column("executed_context_tokens", "Int64", "measured", "prompt tokens as computed, padding included; NA: not told"),
    Column("executed_generation_requests", "Int64", "measured", "decode rows as run, padding included; NA: not told"),
    Column(
        "executed_generation_seq_len_sum", "Int64", "measured", "sequence lengths of those rows, padded; NA: not told"
    ),
    Column("speculative_tokens", "Int64", "measured", "generated tokens that a draft proposed; NA: not told"),
    Column("compiles", "Int64", "measured", "compilations that ran inside the step"),
    Column("profiled", "boolean", "measured", "a profiler window was open"),
    Column("phase", "string", "derived", "prefill, decode or mixed, by its tokens or else as marked; NA where unknown"),
)

# One row per request and source: a load generator's result file, and the program's own marks (`requests` shards).
# With both, the same request has two rows, told apart by `source`.
REQUESTS: tuple[Column, ...] = (
    Column("arrival_ns", "Int64", "measured", "request sent by the client, CLOCK_MONOTONIC; NA where unknown"),
    Column("prompt_tokens", "Int64", "measured", "prompt length"),
    Column("output_tokens", "Int64", "measured", "tokens received"),
    Column("ttft_ns", "Int64", "measured", "time to first token, as the source saw it"),
    Column("e2e_ns", "Int64", "measured", "time to the last token, as the source saw it"),
    Column("itl_mean_ns", "Float64", "measured", "mean gap between tokens; NA with fewer than two tokens"),
    Column("itl_max_ns", "Float64", "measured", "largest gap between tokens"),
    Column("failed", "boolean", "measured", "the request did not complete; NA where it was still open"),
    Column("queue_ns", "Int64", "measured", "time from arrival until it was scheduled, as the program saw it"),
    Column("cached_tokens", "Int64", "measured", "prompt tokens that a cache held"),
    Column("reasoning_tokens", "Int64", "measured", "the part of the output that is reasoning"),
    Column("max_tokens", "Int64", "measured", "the most output tokens that the request allowed"),
    Column("finish_reason", "string", "measured", "stop, length, abort, error, tool_calls or other; NA where unknown"),
    Column("preemptions", "Int64", "measured", "times that it lost its place in the KV cache and was computed again"),
    Column("source", "string", "measured", "bench_result (a load generator) or agent (the program)"),
)

# One row per changed sample of a polled /metrics page, carried forward by the reader.
COUNTERS: tuple[Column, ...] = (
    Column("time_ns", "int64", "measured", "time of the poll, CLOCK_MONOTONIC"),
    Column("endpoint", "int64", "measured", "which polled address, numbered"),
    Column("name", "string", "measured", "sample name, e.g. vllm:num_requests_running"),
    Column("labels", "string", "measured", "labels as sorted JSON"),
    Column("value", "float64", "measured", "sample value"),
)

# One row per poll of a /metrics page; without rows where the recorder did not note every poll.
POLLS: tuple[Column, ...] = (
    Column("time_ns", "int64", "measured", "when the page was asked for, CLOCK_MONOTONIC"),
    Column("endpoint", "int64", "measured", "which polled address, numbered"),
    Column("ok", "boolean", "measured", "the page answered"),
)

# One row per call of a collective of torch.distributed, and of a send or receive. Source: `collectives` shards.
COLLECTIVES: tuple[Column, ...] = (
    Column("launch_ns", "int64", "measured", "the call was made, CLOCK_MONOTONIC"),
    Column("start_ns", "Int64", "measured", "the caller began to be blocked; NA where it never waited"),
    Column("end_ns", "Int64", "measured", "the caller went on; NA where it never waited"),
    Column("writer", "string", "measured", "process that made the call"),
    Column("op", "string", "measured", "function of torch.distributed"),
    Column("bytes", "Int64", "measured", "the larger side of the data of one rank; NA where unknown"),
    Column("group", "int64", "measured", "process group, the same number in all its processes"),
    Column("size", "int64", "measured", "ranks that take part"),
    Column("rank", "int64", "measured", "rank within the group"),
    Column("seq", "int64", "measured", "number of the call in its group, or pair of ranks; 0 where unknown"),
    Column("peer", "Int64", "measured", "the other rank of a send or receive; NA for calls of a whole group"),
    Column("blocking", "boolean", "measured", "the call itself blocked; else its start and end are those of a wait"),
)

# One row per named part of an engine's own work. Source: `phases` shards (`spyreprof_agent.phase`).
PHASES: tuple[Column, ...] = (
    Column("start_ns", "int64", "measured", "start of the part, CLOCK_MONOTONIC"),
    Column("end_ns", "int64", "measured", "end of the part, CLOCK_MONOTONIC"),
    Column("writer", "string", "measured", "process that did it"),
    Column("name", "string", "measured", "name that the program gave it"),
)

# One row per second and process. Source: `usage` shards.
USAGE: tuple[Column, ...] = (
    Column("time_ns", "int64", "measured", "time of the sample, CLOCK_MONOTONIC"),
    Column("pid", "int64", "measured", "process id"),
    Column("tid", "Int64", "measured", "thread id; NA on the row of the whole process"),
    Column("cpu_ns", "int64", "measured", "user and system time so far"),
    Column("rss_bytes", "Int64", "measured", "resident memory; NA on thread rows"),
)

# One row per window of py-spy, thread and innermost frame; a window without stacks has one row without a thread.
# Source: `stacks` shards. The analyzers get `frame` in place of `function` and `file`: names are foreign text.
STACKS: tuple[Column, ...] = (
    Column("start_ns", "int64", "measured", "start of the window, CLOCK_MONOTONIC"),
    Column("end_ns", "int64", "measured", "end of the window, CLOCK_MONOTONIC"),
    Column("pid", "int64", "measured", "process id"),
    Column("thread", "string", "measured", "thread of the process; NA where the window has no stacks"),
    Column("looks", "int64", "measured", "looks at the process in this window: the most that one thread can have"),
    Column("rate_hz", "int64", "measured", "looks per second that were asked for"),
    Column("with_sleeping", "boolean", "measured", "threads that the kernel did not run were taken along"),
    Column("state_known", "boolean", "derived", "whether the kernel ran this thread is known"),
    Column("complete", "boolean", "measured", "the window was not cut short"),
    Column("function", "string", "measured", "innermost Python function"),
    Column("file", "string", "measured", "its file, within its package"),
    Column("waiting", "boolean", "derived", "a function that waits, whatever the kernel says"),
    Column("count", "int64", "measured", "looks that found the thread there"),
)


@dataclass(frozen=True, slots=True)
class Peak:
    """A ceiling of the machine, with where it came from.

    `before` and `after` are the two measurements around the run; None where only one source exists.
    """

    resource: Literal["compute", "memory_bandwidth", "dispatch"]
    value: float
    unit: str  # "flop/s", "bytes/s", "ns/operator"
    origin: Origin
    source: str
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the hooks learned of the model. None where unknown."""

    parameter_bytes: int | None = None
    embedding_bytes: int | None = None
    dtype: str | None = None
    # What one token reads: less than all parameters in a mixture of experts.
    active_parameter_bytes: int | None = None
    layers: int | None = None
    # Layers whose keys and values grow with every token; sliding windows and state-space layers do not.
    attention_layers: int | None = None
    hidden_size: int | None = None
    attention_heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    # One latent vector per token and layer in place of keys and values (MLA); it is not divided by ranks.
    kv_latent_size: int | None = None
    kv_dtype: str | None = None
    experts: int | None = None
    experts_per_token: int | None = None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Engine settings in force, read from live objects or the engine's own metrics, never from argv."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_blocks: int | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    source: str | None = None
    # Tokens that the whole cache holds, where the engine says so itself; with groups of layers it is not blocks x size.
    kv_tokens: int | None = None
    max_model_len: int | None = None
    long_prefill_token_threshold: int | None = None
    reserve_full_prompt: bool | None = None
    memory_utilisation_ratio: float | None = None
    kv_dtype: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    expert_parallel: bool | None = None
    eager: bool | None = None
    async_scheduling: bool | None = None
    custom_all_reduce: bool | None = None
    stream_interval: int | None = None
    api_servers: int | None = None
    # Tokens that a draft proposes in each step; 0 where speculative decoding is off.
    speculative_tokens: int | None = None
    # Requests are held to a grammar (structured output).
    grammar: bool | None = None
    # What joins the devices of one engine.
    link: Literal["nvlink", "pcie", "network", "shared_memory"] | None = None
    # State-space blocks of hybrid models: each running request needs one.
    state_blocks: int | None = None
    # Spyre: most tokens of batch x longest context that a decode step may hold.
    max_batch_tokens: int | None = None
    platform: Literal["cuda", "rocm", "xpu", "cpu", "spyre"] | None = None

    @property
    def kv_capacity_tokens(self) -> int | None:
        """Tokens that the KV cache holds; None where unknown.

        Blocks of hybrid models hold groups of layers, so that only what the engine itself says counts there.
        """
        if self.kv_tokens is not None or self.state_blocks is not None:
            return self.kv_tokens
        return self.kv_blocks * self.block_size if self.kv_blocks is not None and self.block_size else None


@dataclass(frozen=True, slots=True, order=True)
class EngineKey:
    """One of the engines that polled pages show: the address, and the labels that tell engines apart there."""

    endpoint: int
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of the recording's clock with a reason, e.g. the pause of a profiler window."""

    start_ns: int
    end_ns: int
    reason: str
    writer: str | None = None


@dataclass(frozen=True)
class ImportedStacks:
    """What analyzers may know of imported files of call stacks; names stay outside.

    Attributes:
        alone: no trace was given with them.
        without_unit: profiles whose file does not tell what their samples weigh.
        without_files: profiles whose frames name no Python files, so that waits cannot be told.
    """

    alone: bool
    without_unit: int
    without_files: int


@dataclass(frozen=True)
class AnalysisInputs:
    """Everything that analyzers may look at. No argv, no file names, no model names."""

    steps: pd.DataFrame
    requests: pd.DataFrame
    counters: pd.DataFrame
    usage: pd.DataFrame
    recording_start_ns: int
    recording_end_ns: int
    finished: bool
    profiled_steps: tuple[ProfiledStep, ...] = ()
    # Columns of STACKS with `frame`, a number, in place of `function` and `file`; None where none were sampled.
    stacks: pd.DataFrame | None = None
    pauses: tuple[Interval, ...] = ()
    compiles: tuple[Interval, ...] = ()
    peaks: tuple[Peak, ...] = ()
    model: ModelFacts = field(default_factory=ModelFacts)
    # Of several engines, what they agree on; each one's own stand in `settings_of`.
    settings: EngineSettings = field(default_factory=EngineSettings)
    settings_of: tuple[tuple[EngineKey, EngineSettings], ...] = ()
    device_kind: str | None = None
    cpu_count: int | None = None
    # Nobody else uses its processors: neither virtual nor in a container; None where that is not known.
    own_machine: bool | None = None
    collectives: pd.DataFrame | None = None
    # Columns of POLLS; None like no rows: it is not known when gauges were asked for in vain.
    polls: pd.DataFrame | None = None
    # Columns of PHASES, where only names that are common knowledge remain; None like no rows.
    named_phases: pd.DataFrame | None = None
    # Faults of the traces that the recording was made of; None where it was recorded.
    imported_faults: tuple[Fault, ...] | None = None
    # None where no files of stacks are among what it was made of.
    imported_stacks: ImportedStacks | None = None
