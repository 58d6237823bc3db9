"""What kind of work an operator or a device kernel does, told by its name."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

OperatorKind = Literal["matmul", "attention", "elementwise", "copy", "communication", "other"]

# An operator belongs to the first row that names it: exactly (in-place variants as their base), or by the
# beginning of its name.
# Thin wrappers (aten::linear around aten::addmm) have the kind of what they wrap: their own time is its dispatch.
KINDS: tuple[tuple[OperatorKind, frozenset[str], tuple[str, ...]], ...] = (
    (
        "communication",
        frozenset(),
        ("c10d::", "_c10d_functional::", "gloo:", "nccl:", "xccl:", "spyreccl:", "mpi:", "record_param_comms"),
    ),
    (
        "matmul",
        frozenset(
            (
                "aten::mm",
                "aten::addmm",
                "aten::_addmm_activation",
                "aten::bmm",
                "aten::baddbmm",
                "aten::addbmm",
                "aten::mv",
                "aten::addmv",
                "aten::dot",
                "aten::matmul",
                "aten::linear",
                "aten::einsum",
                "aten::tensordot",
                "aten::inner",
                "aten::mkldnn_linear",
                "aten::_int_mm",
                "aten::_scaled_mm",
                "aten::_grouped_mm",
                "aten::_weight_int8pack_mm",
                "aten::_weight_int4pack_mm",
                "aten::_weight_int4pack_mm_for_cpu",
                "mkldnn::_linear_pointwise",
                "mkl::_mkl_linear",
                "_C::cpu_fused_moe",
                "_C::onednn_mm",
                "_C::onednn_scaled_mm",
                "_C::weight_packed_linear",
                "_C::cutlass_scaled_mm",
                "vllm::moe_forward",
            )
        ),
        ("onednn::qlinear", "quantized::linear", "_C::cpu_gemm", "_C::marlin_gemm", "_moe_C::moe_wna16_gemm"),
    ),
    (
        "attention",
        frozenset(
            (
                "aten::scaled_dot_product_attention",
                "aten::_native_multi_head_attention",
                "aten::_transformer_encoder_layer_fwd",
                "vllm::unified_attention",
                "vllm::unified_attention_with_output",
                "vllm::unified_mla_attention",
                "vllm::unified_mla_attention_with_output",
                "_C::cpu_attention_with_kv_cache",
                "_C::paged_attention_v1",
                "_C::paged_attention_v2",
                "_C::mla_decode_kvcache",
            )
        ),
        (
            "aten::_scaled_dot_product_",
            "aten::_flash_attention",
            "aten::_efficient_attention",
            "aten::_cudnn_attention",
            "flash_attn::",
            "_vllm_fa",
            "spyre_attn::",
        ),
    ),
    (
        "copy",
        frozenset(
            (
                "aten::copy",
                "aten::_to_copy",
                "aten::to",
                "aten::clone",
                "aten::contiguous",
                "aten::cat",
                "aten::stack",
                "aten::gather",
                "aten::take_along_dim",
                "aten::scatter",
                "aten::slice_scatter",
                "aten::masked_select",
                "aten::embedding",
                "aten::repeat",
                "aten::repeat_interleave",
                "aten::roll",
                "aten::flip",
                "aten::pad",
                "aten::constant_pad_nd",
                "aten::_copy_from",
                "aten::_copy_from_and_resize",
                "aten::_local_scalar_dense",
                "aten::item",
                "vllm::unified_kv_cache_update",
                "_C::cpu_attn_reshape_and_cache",
            )
        ),
        ("aten::index", "aten::_index_put", "_C_cache_ops::", "Memcpy", "Memset"),
    ),
    (
        "elementwise",
        frozenset(
            (
                "aten::add",
                "aten::sub",
                "aten::rsub",
                "aten::mul",
                "aten::div",
                "aten::neg",
                "aten::abs",
                "aten::pow",
                "aten::square",
                "aten::sqrt",
                "aten::rsqrt",
                "aten::exp",
                "aten::log",
                "aten::sin",
                "aten::cos",
                "aten::tanh",
                "aten::sigmoid",
                "aten::silu",
                "aten::gelu",
                "aten::relu",
                "aten::where",
                "aten::masked_fill",
                "aten::clamp",
                "aten::clamp_min",
                "aten::minimum",
                "aten::maximum",
                "aten::eq",
                "aten::ne",
                "aten::lt",
                "aten::le",
                "aten::gt",
                "aten::ge",
                "aten::logical_and",
                "aten::logical_or",
                "aten::logical_not",
                "aten::bitwise_and",
                "aten::bitwise_or",
                "aten::bitwise_not",
                "aten::addcmul",
                "aten::lerp",
                "aten::erf",
                "aten::floor",
                "aten::floor_divide",
                "aten::remainder",
                "aten::triu",
                "aten::tril",
                "aten::sum",
                "aten::mean",
                "aten::amax",
                "aten::amin",
                "aten::max",
                "aten::min",
                "aten::argmax",
                "aten::argmin",
                "aten::any",
                "aten::all",
                "aten::cumsum",
                "aten::norm",
                "aten::linalg_vector_norm",
                "aten::var",
                "aten::softmax",
                "aten::_softmax",
                "aten::log_softmax",
                "aten::_log_softmax",
                "aten::logsumexp",
                "aten::layer_norm",
                "aten::native_layer_norm",
                "aten::rms_norm",
                "aten::_fused_rms_norm",
                "aten::fill",
                "aten::zero",
                "aten::topk",
                "aten::sort",
                "aten::multinomial",
                "aten::exponential",
            )
        ),
        (
            "_C::silu_and_mul",
            "_C::gelu",
            "_C::rms_norm",
            "_C::fused_add_rms_norm",
            "_C::rotary_embedding",
            "_C::greedy_argmax",
        ),
    ),
)

# Device kernels carry their maker's names. Tried in this order, in lower case, when no operator is linked.
_KERNEL_WORDS: tuple[tuple[OperatorKind, tuple[str, ...]], ...] = (
    ("communication", ("nccl", "rccl", "allreduce", "all_reduce", "allgather", "all_gather", "reducescatter")),
    ("copy", ("memcpy", "memset", "copy", "gather", "scatter", "catarray", "index", "embedding", "restickify")),
    ("attention", ("attention", "attn", "fmha", "flash_", "flashinfer", "paged")),
    ("matmul", ("gemm", "gemv", "matmul", "_mm", "cutlass", "cijk_", "xmma", "wgmma", "linear", "splitk")),
    ("elementwise", ("elementwise", "softmax", "norm", "reduce", "silu", "gelu", "rotary", "triton_")),
)


@lru_cache(maxsize=65536)
def operator_kind(name: str) -> OperatorKind:
    """The kind of an operator by its name; "other" when no row names it (views, allocation, bookkeeping)."""
    base = name.removesuffix("_")
    for kind, exact, prefixes in KINDS:
        if name in exact or base in exact or name.startswith(prefixes):
            return kind
    return "other"


@lru_cache(maxsize=65536)
def kernel_kind(name: str) -> OperatorKind:
    """The kind of a device kernel by its name alone; "other" when its name says nothing."""
    lower = name.lower()
    for kind, words in _KERNEL_WORDS:
        if any(word in lower for word in words):
            return kind
    return "other"
