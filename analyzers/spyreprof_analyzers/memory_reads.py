"""What a decode step must read from memory: weights once, and the keys and values of every token so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyreprof.units import NS_PER_S

if TYPE_CHECKING:
    from spyreprof.recording.schema import EngineSettings, ModelFacts
    from spyreprof_analyzers.facts import Facts

_DTYPE_BYTES: dict[str, float] = {
    "float64": 8, "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "fp8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int4": 0.5, "nvfp4": 0.5,
}  # fmt: skip
# Of heads with rotary positions the Spyre stack pads the size to a multiple of this.
_SPYRE_HEAD_MULTIPLE = 128


@dataclass(frozen=True, slots=True)
class DecodeReads:
    """Bytes that one device reads in the usual decode step.

    Attributes:
        weight_bytes: weights, once; of a mixture of experts those that the batch is expected to hit.
        kv_bytes: keys and values of all tokens that the batch holds.
        batch: requests of that step.
        cached_tokens: tokens that they hold together.
    """

    weight_bytes: float
    kv_bytes: float
    batch: float
    cached_tokens: float

    @property
    def total_bytes(self) -> float:
        """Both."""
        return self.weight_bytes + self.kv_bytes

    @property
    def weight_share(self) -> float:
        """Weights over both, 0 to 1."""
        return self.weight_bytes / self.total_bytes if self.total_bytes > 0 else 0.0


def dtype_bytes(name: str | None) -> float | None:
    """Bytes of an element; None of a type that is not known, "auto" among them."""
    return _DTYPE_BYTES.get((name or "").removeprefix("torch."))


def kv_dtype(model: ModelFacts, settings: EngineSettings) -> str | None:
    """Type of keys and values; "auto" is that of the model."""
    for name in (settings.kv_dtype, model.kv_dtype, model.dtype):
        if name is not None and name != "auto":
            return name
    return None


def kv_bytes_per_token(model: ModelFacts, settings: EngineSettings) -> float | None:
    """Bytes of keys and values that one device holds for one token; None where a number of the model is missing.

    Ranks divide the heads among them, and each holds one where there are more ranks than heads; a latent vector in
    place of keys and values is held by each rank.
    """
    element = dtype_bytes(kv_dtype(model, settings))
    layers = model.attention_layers if model.attention_layers is not None else model.layers
    if element is None or layers is None:
        return None
    stages = max(settings.pipeline_parallel or 1, 1)
    if model.kv_latent_size is not None:
        return layers / stages * model.kv_latent_size * element
    if model.kv_heads is None or model.head_dim is None:
        return None
    size = model.head_dim
    if settings.platform == "spyre":
        size = -(-size // _SPYRE_HEAD_MULTIPLE) * _SPYRE_HEAD_MULTIPLE
    heads = max(model.kv_heads / max(settings.tensor_parallel or 1, 1), 1.0)
    return 2.0 * layers / stages * heads * size * element


def weight_bytes(model: ModelFacts, batch: float) -> float | None:
    """Bytes of weights that a step of so many tokens reads on the device whose parameters are known.

    Of experts those that are hit: each token takes `experts_per_token` of `experts`, at random. Skewed routing reads
    fewer. None where the size of the model is not known.
    """
    if model.parameter_bytes is None:
        return None
    everything = float(model.parameter_bytes - (model.embedding_bytes or 0))
    if everything <= 0:
        return None
    active, experts, taken = model.active_parameter_bytes, model.experts, model.experts_per_token
    if active is None or not experts or not taken or taken >= experts or active >= model.parameter_bytes:
        return everything
    # all = shared + experts, active = shared + experts x taken / experts
    of_experts = (model.parameter_bytes - active) / (1.0 - taken / experts)
    missed = of_experts * float((1.0 - taken / experts) ** max(batch, 1.0))
    return max(everything - missed, 0.0)


def decode_reads(facts: Facts) -> DecodeReads | None:
    """What the mean decode step reads; None where sizes of the model or lengths of the steps are not known."""
    steps = facts.decode_steps.where(facts.decode_steps.counted & (facts.decode_steps.generation_seq_len_sum >= 0))
    per_token = kv_bytes_per_token(facts.parameters, facts.settings)
    if len(steps) == 0 or per_token is None:
        return None
    batch, cached = float(steps.generation_requests.mean()), float(steps.generation_seq_len_sum.mean())
    weights = weight_bytes(facts.parameters, batch)
    return DecodeReads(weights, per_token * cached, batch, cached) if weights is not None else None


def read_floor_ratio(facts: Facts, reads: DecodeReads) -> float | None:
    """Least time for those bytes at the bandwidth peak over the mean decode step; None without a peak."""
    peak = facts.peaks.usable.get("memory_bandwidth")
    steps = facts.decode_steps
    if peak is None or len(steps) == 0 or peak.value <= 0:
        return None
    mean_s = float(steps.duration_ns.mean()) / NS_PER_S
    return reads.total_bytes / peak.value / mean_s if mean_s > 0 else None
