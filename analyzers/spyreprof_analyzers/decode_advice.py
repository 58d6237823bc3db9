"""What to change where decode is bound by reading memory: more requests per read, or fewer bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Advice, ExpectedChange
from spyreprof_analyzers.host_advice import on_gpu
from spyreprof_analyzers.memory_reads import decode_reads, dtype_bytes, kv_dtype
from spyreprof_analyzers.prediction import predict_step
from spyreprof_analyzers.slope_tests import PER_CACHED_TOKEN

if TYPE_CHECKING:
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.facts import Facts

_KV_MODEL_BAND = 0.25
_SIXTEEN_BITS = 2


def decode_advice(context: Context) -> tuple[Advice, ...]:
    """Advice on a decode phase whose bound is memory, where that is the verdict."""
    facts, rule = context.facts, context.rules["SPY-DEC-001"]
    if context.verdict.primary != "decode_bandwidth_bound":
        return ()
    reads_kv, reads = facts.bounds["decode"].reads_kv, decode_reads(facts)
    weights = 0.0 if reads_kv else reads.weight_share if reads is not None else None
    found: list[Advice] = []
    if not reads_kv:  # more requests share the read of weights; they do not share that of the KV cache
        found += concurrency_advice(context)
    if weights is None or weights >= rule.threshold("min_weight_share"):
        found += shorter_weights(facts, 1.0 if weights is None else weights)
    if reads_kv or (reads is not None and 1.0 - reads.weight_share >= rule.threshold("min_kv_share")):
        found += shorter_cache(facts, 1.0 - reads.weight_share if reads is not None else None)
    return tuple(found)


def nobody_waits(context: Context) -> bool:
    """Do gauges show no queue, and does no other witness speak of one?"""
    seen = context.facts.admission
    queued = any(view.says in ("queue_bound", "kv_capacity_bound") for view in context.verdict.witnesses)
    return seen is not None and seen.waiting_p95 < 1 and not queued


def concurrency_advice(context: Context) -> tuple[Advice, ...]:
    """With nobody waiting, only the clients can fill the batch."""
    facts = context.facts
    seen = facts.admission
    if seen is None or not nobody_waits(context):
        return ()
    current = max(round(seen.running_p95), 1)
    if current < (facts.settings.pipeline_parallel or 1):
        return ()  # a rule of its own says how many a pipeline needs
    to = 2 * current
    gain = _gain(context, current, to)
    note = (
        "at most doubled, if the kernels keep their efficiency at twice the batch; larger batches were not seen here, "
        "so the gain itself is not predicted"
    )
    return (
        Advice(
            id="client_concurrency",
            setting="client concurrency",
            from_=current,
            to=to,
            from_origin="measured",
            expected=(
                ExpectedChange(metric="output tokens/s", direction="up", high=1.0, note=note) if gain is None else gain,
            ),
            pays=(ExpectedChange(metric="ITL", direction="up", note="a larger batch never makes a step shorter"),),
            preconditions=(
                "more requests are there to be served at the same time, or fewer replicas can serve the same clients",
            ),
            test_arguments="",
            test_note=f"under a load of {to} concurrent clients",
            refuted_if="output tokens per second rise by less than a tenth",
        ),
    )  # fmt: skip


def _gain(context: Context, current: int, to: int) -> ExpectedChange | None:
    """Output tokens per second of a batch of `to`, where the recording predicts its step; None where it does not.

    Far beyond the batches seen only steps with prompts hold as many tokens, and those cost more than decodes alone.
    """
    facts, reach = context.facts, context.rules["SPY-GEN-006"].threshold("extrapolation")
    now, then = predict_step(facts, current, context.rules), predict_step(facts, to, context.rules)
    if now is None or then is None or not (then.measured or to <= reach * facts.decode_models.largest):
        return None
    prefill, decode = facts.shares.prefill, facts.shares.decode

    def gain(step_s: float) -> float:
        shrunk = decode * (step_s / to) / (now.seconds / current)
        return (prefill + decode) / max(prefill + shrunk, 1e-9) - 1.0

    low, high = gain(then.seconds * (1.0 + then.band)), gain(then.seconds * (1.0 - then.band))
    return ExpectedChange(
        metric="output tokens/s", direction="up", low=max(low, 0.0), high=min(max(high, 0.0), to / current - 1.0),
        note=f"step time from {then.basis}; prompts cost what they cost",
    )  # fmt: skip


def shorter_weights(facts: Facts, share: float) -> tuple[Advice, ...]:
    """Half the bytes of each weight."""
    now = facts.parameters.dtype
    size = dtype_bytes(now)
    if size is None or size < 2:
        return ()
    if size > 2:
        to, arguments, note = "bfloat16", "--dtype bfloat16", ""
    elif on_gpu(facts.settings, facts.device_kind):
        to, arguments, note = "fp8", "--quantization fp8", "or with a checkpoint of the model in 8 or 4 bits"
    else:
        to, arguments, note = "int8", "", "with a checkpoint of the model in 8 bits, in a format that the engine takes"
    return (
        Advice(
            id="weight_quantization",
            setting="weight precision",
            from_=now,
            to=to,
            from_origin="measured",
            expected=(
                ExpectedChange(
                    metric="ITL", direction="down", high=0.5 * share,
                    note="at most: half of what is read as weights, if kernels read the shorter form as fast",
                ),
            ),
            pays=(ExpectedChange(metric="quality of answers", direction="down", note="is not measured here"),),
            preconditions=(
                "the device computes in that precision, and the engine supports it for this model",
                "answers stay good enough: check them on your own task",
            ),
            test_arguments=arguments,
            test_note=note,
            refuted_if="the median decode step does not get shorter",
        ),
    )  # fmt: skip


def faster_arithmetic(facts: Facts) -> tuple[Advice, ...]:
    """Prompts in a precision of which a GPU computes twice as much; its gain depends on kernels that were not seen."""
    now = facts.parameters.dtype
    if not on_gpu(facts.settings, facts.device_kind) or dtype_bytes(now) != _SIXTEEN_BITS:
        return ()
    return (
        Advice(
            id="compute_precision",
            setting="weight precision",
            from_=now,
            to="fp8",
            from_origin="measured",
            expected=(
                ExpectedChange(metric="prompt tokens/s", direction="up", note="how much depends on the kernels"),
            ),
            pays=(ExpectedChange(metric="quality of answers", direction="down", note="is not measured here"),),
            preconditions=(
                "the device computes in 8 bits (not only stores them), and the engine supports it for this model",
                "answers stay good enough: check them on your own task",
            ),
            test_arguments="--quantization fp8",
            refuted_if="prompt tokens per second of prefill time do not rise",
        ),
    )


def shorter_cache(facts: Facts, share: float | None) -> tuple[Advice, ...]:
    """Half the bytes of each cached token, on platforms that have it."""
    now = kv_dtype(facts.parameters, facts.settings)
    size = dtype_bytes(now)
    if not on_gpu(facts.settings, facts.device_kind) or (size is not None and size < 2):
        return ()
    regime = facts.model.decode if facts.model is not None else None
    fitted = regime.share(PER_CACHED_TOKEN) if regime is not None else None
    if fitted is not None:
        change = ExpectedChange(
            metric="ITL", direction="down", low=0.5 * fitted * (1.0 - _KV_MODEL_BAND),
            high=min(0.5 * fitted * (1.0 + _KV_MODEL_BAND), 0.5),
            note="half of what the fitted step model gives to cached tokens, at the lengths seen here",
        )  # fmt: skip
    else:
        change = ExpectedChange(
            metric="ITL", direction="down", high=0.5 * share if share is not None else 0.5,
            note="at most: half of what is read as keys and values",
        )  # fmt: skip
    return (
        Advice(
            id="kv_cache_dtype",
            setting="kv_cache_dtype",
            from_=now if size is not None else None,  # a name that is not known is foreign text
            to="fp8",
            from_origin="measured",
            expected=(change,),
            pays=(ExpectedChange(metric="quality of answers", direction="down", note="is not measured here"),),
            preconditions=(
                "the attention kernels take 8-bit keys and values",
                "in hybrid models less is saved: their state-space and window layers keep what they hold",
            ),
            test_arguments="--kv-cache-dtype fp8",
            refuted_if="the median decode step at the same lengths does not get shorter",
        ),
    )
