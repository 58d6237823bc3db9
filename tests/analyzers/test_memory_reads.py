"""Bytes of keys, values and weights, by the formulas that engines allocate them by."""

from __future__ import annotations

import pytest

from spyreprof.recording.schema import EngineSettings, ModelFacts
from spyreprof_analyzers.memory_reads import DecodeReads, kv_bytes_per_token, kv_dtype, weight_bytes

LLAMA_8B = ModelFacts(layers=32, kv_heads=8, head_dim=128, attention_heads=32, dtype="bfloat16")


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        (LLAMA_8B, EngineSettings(), 131_072),
        (LLAMA_8B, EngineSettings(kv_dtype="auto"), 131_072),
        (LLAMA_8B, EngineSettings(kv_dtype="fp8"), 65_536),
        (LLAMA_8B, EngineSettings(tensor_parallel=4), 32_768),
        # more ranks than heads: each holds one
        (LLAMA_8B, EngineSettings(tensor_parallel=16), 16_384),
        (LLAMA_8B, EngineSettings(pipeline_parallel=2), 65_536),
        # layers of a sliding window do not grow
        (ModelFacts(layers=32, attention_layers=8, kv_heads=8, head_dim=128, dtype="bfloat16"), EngineSettings(),
         32_768),
        # latent vectors are not divided by ranks
        (ModelFacts(layers=61, kv_latent_size=576, dtype="bfloat16"), EngineSettings(tensor_parallel=8), 70_272),
        (ModelFacts(layers=10, kv_heads=2, head_dim=64, dtype="float16"), EngineSettings(platform="spyre"), 10_240),
        (ModelFacts(layers=10, kv_heads=2, head_dim=64, dtype="float16"), EngineSettings(platform="cuda"), 5_120),
    ],
)  # fmt: skip
def test_bytes_of_a_token_in_the_cache(model: ModelFacts, settings: EngineSettings, expected: int) -> None:
    assert kv_bytes_per_token(model, settings) == expected


@pytest.mark.parametrize(
    "model",
    [
        ModelFacts(),
        ModelFacts(kv_heads=8, head_dim=128, dtype="bfloat16"),
        ModelFacts(layers=32, head_dim=128, dtype="bfloat16"),
        ModelFacts(layers=32, kv_heads=8, dtype="bfloat16"),
        ModelFacts(layers=32, kv_heads=8, head_dim=128),
        ModelFacts(layers=32, kv_heads=8, head_dim=128, dtype="a new type"),
    ],
)
def test_what_is_not_known_of_the_model_is_no_zero(model: ModelFacts) -> None:
    assert kv_bytes_per_token(model, EngineSettings()) is None


def test_the_type_of_the_cache_goes_before_that_of_the_model() -> None:
    assert kv_dtype(LLAMA_8B, EngineSettings(kv_dtype="fp8")) == "fp8"
    assert kv_dtype(LLAMA_8B, EngineSettings(kv_dtype="auto")) == "bfloat16"
    assert kv_dtype(ModelFacts(), EngineSettings()) is None


def test_a_dense_model_reads_all_but_its_embedding_table() -> None:
    model = ModelFacts(parameter_bytes=1000, embedding_bytes=100)
    assert weight_bytes(model, 1) == weight_bytes(model, 64) == 900
    assert weight_bytes(ModelFacts(), 1) is None
    assert weight_bytes(ModelFacts(parameter_bytes=100, embedding_bytes=100), 1) is None


def test_a_mixture_of_experts_reads_those_that_its_batch_hits() -> None:
    """200 shared bytes, 8 experts of 100, two of them for a token."""
    model = ModelFacts(parameter_bytes=1000, active_parameter_bytes=400, experts=8, experts_per_token=2)
    assert weight_bytes(model, 1) == pytest.approx(400)
    assert weight_bytes(model, 2) == pytest.approx(200 + 800 * (1 - 0.75**2))
    assert weight_bytes(model, 1000) == pytest.approx(1000)


def test_weights_and_cache_share_what_is_read() -> None:
    assert DecodeReads(300.0, 100.0, 4, 100).weight_share == 0.75
    assert DecodeReads(0.0, 0.0, 1, 0).weight_share == 0.0
