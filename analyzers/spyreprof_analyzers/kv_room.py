"""Ways to make room in the KV cache, the cheapest first, each only where it can help on this platform."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Advice, ExpectedChange
from spyreprof_analyzers.memory_reads import dtype_bytes, kv_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyreprof.recording.schema import EngineSettings, ModelFacts
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.request_log import RequestLog

# Ways beyond these are worth a try only after them.
_MOST = 3
_ACCELERATORS = frozenset({"cuda", "rocm", "xpu"})
_DEVICES = {"cuda": "cuda", "hip": "rocm", "rocm": "rocm", "xpu": "xpu", "cpu": "cpu", "spyre": "spyre"}
_LESS_QUEUE = ExpectedChange(metric="queue time", direction="down", note="more requests fit; no range can be given")
_REFUTED = "vllm:kv_cache_usage_perc stays above 0.9 while requests wait"


@dataclass(frozen=True, slots=True)
class Shortage:
    """How much KV cache is lacking, and what is known of the engine.

    `factor` is the needed size over the present one; `longest` and `longest_output` are 99th percentiles of prompt +
    output and of output tokens. None where they are not known.
    """

    factor: float | None
    settings: EngineSettings
    model: ModelFacts
    device_kind: str | None
    longest: float | None = None
    longest_output: float | None = None

    @property
    def platform(self) -> str | None:
        """Where the engine runs; None where nothing tells."""
        return self.settings.platform or _DEVICES.get(self.device_kind or "")

    @property
    def on_accelerator(self) -> bool:
        """Whether the cache is a part of a device's own memory."""
        return self.platform in _ACCELERATORS


def longest(log: RequestLog | None) -> tuple[float | None, float | None]:
    """99th percentiles of prompt + output tokens and of output tokens; None where a log lacks them."""
    if log is None:
        return None, None
    whole, output = log.prompt_tokens + log.output_tokens, log.output_tokens
    return tuple(  # type: ignore[return-value]
        None if np.isnan(tokens).any() else float(np.percentile(tokens, 99)) for tokens in (whole, output)
    )


def needed_factor(demand_p95: float, resident_ratio: float | None) -> float | None:
    """KV cache that all who run and wait would hold, over the present one; None where their share is not known."""
    return demand_p95 * resident_ratio if resident_ratio is not None else None


def more_room(lack: Shortage, rules: RuleBook) -> tuple[Advice, ...]:
    """The cheapest few changes that make room, in the order in which they should be tried."""
    ways: tuple[Callable[[Shortage, RuleBook], Advice | None], ...] = (
        _shorter_limit, _shorter_outputs, _smaller_budget, _more_memory, _smaller_elements, _shared_prompts,
        _more_devices,
    )  # fmt: skip
    found = [advice for way in ways if (advice := way(lack, rules)) is not None]
    return tuple(found[:_MOST])


def _enough(lack: Shortage, gives: float | None) -> tuple[str, ...]:
    """Says whether a change alone is enough; nothing where the need is not known."""
    if lack.factor is None or lack.factor <= 1.0:
        return ()
    need = f"all who run and wait need {lack.factor:.1f} times the present KV cache"
    if gives is None:
        return (need,)
    return (f"{need}, and this gives {gives:.1f} times",)


def _shorter_limit(lack: Shortage, rules: RuleBook) -> Advice | None:
    """No request may hold more of the cache than nearly all need; where the limit is twice that and more."""
    rule, limit = rules["SPY-KVC-001"], lack.settings.max_model_len
    if not lack.on_accelerator or limit is None or lack.longest is None:
        return None
    if limit < rule.threshold("least_limit_ratio") * lack.longest:
        return None
    to = math.ceil(lack.longest * rule.threshold("length_margin"))
    return Advice(
        id="max_model_len",
        setting="max_model_len",
        from_=limit,
        to=to,
        from_origin="measured",
        expected=(_LESS_QUEUE,),
        pays=(ExpectedChange(metric="length of requests", direction="down", note="longer ones are refused"),),
        preconditions=(
            f"99 of 100 requests seen here have at most {lack.longest:.0f} tokens, and longer ones may be refused",
            *_enough(lack, None),
        ),
        test_arguments=f"--max-model-len {to}",
        refuted_if=_REFUTED,
    )


def _shorter_outputs(lack: Shortage, rules: RuleBook) -> Advice | None:
    """A Spyre engine keeps room for the longest output that a request allows, so that the limit itself costs room."""
    if lack.platform != "spyre" or lack.longest_output is None:
        return None
    to = math.ceil(lack.longest_output * rules["SPY-KVC-001"].threshold("length_margin"))
    return Advice(
        id="max_tokens",
        setting="max_tokens of the requests, at the client",
        from_=None,
        to=to,
        from_origin="measured",
        expected=(_LESS_QUEUE,),
        pays=(ExpectedChange(metric="output tokens", direction="down", note="longer outputs are cut off"),),
        preconditions=(
            "the engine reserves blocks for prompt + max_tokens when it admits a request, as those for Spyre do",
            *_enough(lack, None),
        ),
        test_arguments="",
        test_note="the clients set it: it is no option of the engine",
        refuted_if=_REFUTED,
    )


def _smaller_budget(lack: Shortage, rules: RuleBook) -> Advice | None:
    """Activations of a step are sized by its token budget, and what they do not take is left for the cache."""
    budget, cap = lack.settings.max_num_batched_tokens, lack.settings.max_num_seqs
    least = rules["SPY-KVC-001"].threshold("least_token_budget")
    if not lack.on_accelerator or budget is None or budget <= least:
        return None
    to = max(int(least), cap or 0, budget // 2)
    if to >= budget:
        return None
    return Advice(
        id="smaller_token_budget",
        setting="max_num_batched_tokens",
        from_=budget,
        to=to,
        from_origin="measured",
        expected=(ExpectedChange(metric="KV cache", direction="up", note="by what activations no longer take"),
                  _LESS_QUEUE),
        pays=(ExpectedChange(metric="TTFT", direction="up", note="long prompts take more steps"),),
        preconditions=_enough(lack, None),
        test_arguments=f"--max-num-batched-tokens {to}",
        refuted_if="the engine's log shows no more KV cache tokens than before",
    )  # fmt: skip


def _more_memory(lack: Shortage, rules: RuleBook) -> Advice | None:
    ratio, most = lack.settings.memory_utilisation_ratio, rules["SPY-KVC-001"].threshold("most_memory_utilisation")
    if not lack.on_accelerator or ratio is None or ratio >= most:
        return None
    return Advice(
        id="gpu_memory_utilization",
        setting="gpu_memory_utilization",
        from_=ratio,
        to=most,
        from_origin="measured",
        expected=(ExpectedChange(metric="KV cache", direction="up", note="by that part of the device's memory"),
                  _LESS_QUEUE),
        pays=(ExpectedChange(metric="free device memory", direction="down", note="a peak of activations may fail"),),
        preconditions=("nothing else uses the device", *_enough(lack, None)),
        test_arguments=f"--gpu-memory-utilization {most:g}",
        refuted_if="the engine does not start, or its log shows no more KV cache tokens than before",
    )  # fmt: skip


def _smaller_elements(lack: Shortage, rules: RuleBook) -> Advice | None:
    """Keys and values of one byte in place of two; not where part of the state is of another kind."""
    now = kv_dtype(lack.model, lack.settings)
    size = dtype_bytes(now)
    if not lack.on_accelerator or size is None or size < 2 or lack.settings.state_blocks is not None:
        return None
    return Advice(
        id="kv_cache_dtype",
        setting="kv_cache_dtype",
        from_=now,
        to="fp8",
        from_origin="measured" if lack.settings.kv_dtype not in (None, "auto") else "derived",
        expected=(
            ExpectedChange(metric="KV cache tokens", direction="up", low=size - 1.0, high=size - 1.0, origin="derived",
                           note="by the bytes of an element, where all layers are attention"),
            _LESS_QUEUE,
        ),
        pays=(ExpectedChange(metric="accuracy", direction="down", note="measure it on your own task"),),
        preconditions=("the attention kernels of this device take fp8", *_enough(lack, size)),
        test_arguments="--kv-cache-dtype fp8",
        refuted_if="the engine's log shows no more KV cache tokens than before",
    )  # fmt: skip


def _shared_prompts(lack: Shortage, rules: RuleBook) -> Advice | None:
    if lack.settings.prefix_caching is not False:
        return None
    return Advice(
        id="share_prompt_blocks",
        setting="enable_prefix_caching",
        from_="off",
        to="on",
        from_origin="measured",
        expected=(_LESS_QUEUE,),
        pays=(ExpectedChange(metric="KV cache", direction="up", note="blocks keep old prompts until they are needed"),),
        preconditions=("running requests begin with the same tokens", *_enough(lack, None)),
        test_arguments="--enable-prefix-caching",
        refuted_if="vllm:prefix_cache_hits does not rise",
    )


def _more_devices(lack: Shortage, rules: RuleBook) -> Advice | None:
    """Weights that are split leave more room on each device; beyond the KV heads each device holds a copy."""
    settings, model = lack.settings, lack.model
    now = settings.tensor_parallel
    if not lack.on_accelerator or now is None:
        return None
    if model.kv_latent_size is not None or (model.kv_heads is not None and 2 * now > model.kv_heads):
        return None
    return Advice(
        id="more_devices",
        setting="tensor_parallel_size",
        from_=now,
        to=2 * now,
        from_origin="measured",
        expected=(ExpectedChange(metric="KV cache", direction="up", note="more than doubled: weights are split too"),
                  _LESS_QUEUE),
        pays=(ExpectedChange(metric="devices", direction="up", low=1.0, high=1.0, origin="derived",
                             note="twice as many, and all-reduces between them in each layer"),),
        preconditions=("as many devices again, with a fast link between them", *_enough(lack, None)),
        test_arguments=f"--tensor-parallel-size {2 * now}",
        refuted_if="output tokens per second and device fall",
    )  # fmt: skip
