"""Kinds of operators, and the work that their shapes imply."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spyreprof.trace.operator_kinds import kernel_kind, operator_kind
from spyreprof.trace.operators import Work, operator_work
from spyreprof.trace.profiled import profiled_steps
from spyreprof.trace.reader import read


def work(name: str, dims: Any, types: Any = None) -> Work | None:
    types = ["float"] * len(dims) if types is None else types
    return operator_work(name, json.dumps(dims), json.dumps(types))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "matmul"),
        ("aten::addmm", "matmul"),
        ("aten::linear", "matmul"),
        ("mkldnn::_linear_pointwise", "matmul"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::_scaled_dot_product_efficient_attention", "attention"),
        ("vllm::unified_attention_with_output", "attention"),
        ("aten::copy_", "copy"),
        ("aten::cat", "copy"),
        ("aten::index_select", "copy"),
        ("aten::index_put_", "copy"),
        ("aten::embedding", "copy"),
        ("aten::silu_", "elementwise"),
        ("aten::_softmax", "elementwise"),
        ("c10d::allreduce_", "communication"),
        ("gloo:all_reduce", "communication"),
        ("aten::view", "other"),
        ("aten::as_strided", "other"),
        ("aten::mm_like_something_else", "other"),
        ("Torch-Compiled Region: 0/0", "other"),
        ("", "other"),
    ],
)
def test_an_operator_has_the_kind_of_its_name(name: str, kind: str) -> None:
    assert operator_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x64", "matmul"),
        ("void flash_fwd_kernel<...>", "attention"),
        ("ncclDevKernel_AllReduce_Sum_bf16", "communication"),
        ("Memcpy (HtoD)", "copy"),
        ("void at::native::vectorized_elementwise_kernel", "elementwise"),
        ("sdsc_fused_mm_silu_3", "matmul"),
        ("ReStickifyOpHBM", "copy"),
        ("mystery", "other"),
    ],
)
def test_a_kernel_has_the_kind_that_its_name_hints_at(name: str, kind: str) -> None:
    assert kernel_kind(name) == kind


def test_a_matrix_product_reads_both_and_writes_one() -> None:
    assert work("aten::mm", [[2, 3], [3, 5]]) == Work(2 * 2 * 3 * 5, 4 * (6 + 15 + 10))


def test_half_precision_moves_half_the_bytes() -> None:
    full, half = work("aten::mm", [[8, 8], [8, 8]]), work("aten::mm", [[8, 8], [8, 8]], ["c10::Half"] * 2)
    assert full is not None
    assert half is not None
    assert half.flops == full.flops
    assert half.bytes * 2 == full.bytes


def test_a_bias_is_read_once() -> None:
    with_bias = work("aten::addmm", [[5], [2, 3], [3, 5], [], []])
    assert with_bias == Work(60, 4 * (6 + 15 + 10 + 5))
    assert work("aten::linear", [[2, 3], [5, 3], [5]]) == with_bias


def test_a_linear_layer_takes_any_number_of_leading_sizes() -> None:
    assert work("aten::linear", [[2, 4, 3], [5, 3], []]) == work("aten::mm", [[8, 3], [3, 5]])
    assert work("aten::linear", [[3], [5, 3]]) == work("aten::mm", [[1, 3], [3, 5]])


def test_a_packed_weight_is_judged_by_the_original() -> None:
    assert work("mkl::_mkl_linear", [[2, 3], [999], [5, 3], [], []]) == work("aten::mm", [[2, 3], [3, 5]])


def test_products_of_stacks_broadcast() -> None:
    assert work("aten::bmm", [[7, 2, 3], [7, 3, 5]]) == Work(7 * 60, 7 * 4 * 31)
    broadcast = work("aten::matmul", [[7, 2, 3], [3, 5]])
    assert broadcast == Work(7 * 60, 4 * (7 * 6 + 15 + 7 * 10))
    assert work("aten::baddbmm", [[7, 2, 5], [7, 2, 3], [7, 3, 5]]) == Work(7 * 60, 7 * 4 * (31 + 10))


def test_vectors_are_rows_or_columns() -> None:
    assert work("aten::mv", [[5, 6], [6]]) == Work(60, 4 * (30 + 6 + 5))
    assert work("aten::addmv_", [[5], [5, 6], [6], [], []]) == Work(60, 4 * (30 + 6 + 5 + 5))
    assert work("aten::matmul", [[6], [6, 5]]) == Work(60, 4 * (6 + 30 + 5))
    assert work("aten::dot", [[6], [6]]) == Work(12, 4 * 13)


def test_attention_counts_the_whole_rectangle_and_shared_heads_once() -> None:
    q, k = [1, 4, 16, 32], [1, 2, 64, 32]
    found = work("aten::_scaled_dot_product_flash_attention_for_cpu", [q, k, k, [], [], [], []])
    assert found == Work(2 * 4 * 16 * 64 * (32 + 32), 4 * (2 * 4 * 16 * 32 + 2 * 2 * 64 * 32))


@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [
        ("aten::mm", None, ["float", "float"]),
        ("aten::mm", [[2, 3], [3, 5]], None),
        ("aten::mm", [], []),
        ("aten::mm", [[], []], ["float", "float"]),
        ("aten::mm", [[2, 3], [4, 5]], ["float", "float"]),
        ("aten::mm", [[2, 3], [3, 5]], ["quantum", "float"]),
        ("aten::mm", [[2, 3], [3, 5]], ["float"]),
        ("aten::mm", [[2, -3], [-3, 5]], ["float", "float"]),
        ("aten::mm", [[2, "3"], [3, 5]], ["float", "float"]),
        ("aten::bmm", [[7, 2, 3], [6, 3, 5]], ["float", "float"]),
        ("aten::mkldnn_linear", [[], []], ["", ""]),
        ("aten::relu", [[2, 3]], ["float"]),
        ("aten::_scaled_dot_product_flash_attention", [[1, 3, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8]], ["float"] * 3),
        ("aten::_scaled_dot_product_flash_attention_backward", [[1, 2, 4, 8]] * 3, ["float"] * 3),
    ],
)
def test_work_that_cannot_be_known_is_missing_never_zero(name: str, dims: Any, types: Any) -> None:
    assert (
        operator_work(name, None if dims is None else json.dumps(dims), None if types is None else json.dumps(types))
        is None
    )


@pytest.mark.parametrize("text", ["[", "{}", "[1, 2]", "null", "[" * 10_000])
def test_damaged_shapes_are_unknown_shapes(text: str) -> None:
    assert operator_work("aten::mm", text, '["float", "float"]') is None


def flops_of(program: Callable[[], object], path: Path) -> int:
    """Floating-point operations of a program, from its profiler trace."""
    import torch

    name = "execute_context_1(16)_generation_0(0)"
    profiler = torch.autograd.profiler
    with (
        torch.no_grad(),
        profiler.profile(use_kineto=True, record_shapes=True) as profile,
        profiler.record_function(name),
    ):
        program()
    profile.export_chrome_trace(str(path))
    (step,) = profiled_steps(read(path), 0, 1)
    return sum(operator.flops or 0 for operator in step.operators)


def test_the_count_agrees_with_torchs_own(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    def program() -> None:
        x, weight = torch.ones(2, 8, 64), torch.ones(32, 64)
        torch.nn.functional.linear(x, weight, torch.ones(32))
        torch.nn.functional.linear(x[0], weight)
        torch.matmul(x, torch.ones(2, 64, 5))
        torch.einsum("bij,bjk->bik", x, torch.ones(2, 64, 5))
        torch.baddbmm(torch.ones(2, 3, 4), torch.ones(2, 3, 5), torch.ones(2, 5, 4))
        q = torch.ones(1, 4, 16, 32)
        # Taken apart into products, which torch counts; its counter knows no fused attention on the CPU.
        with sdpa_kernel(SDPBackend.MATH):
            torch.nn.functional.scaled_dot_product_attention(q, q, q)

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        program()
    assert flops_of(program, tmp_path / "torch.json") == counter.get_total_flops() > 0


def test_fused_attention_counts_as_much_as_its_parts(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    counts = []
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        q = torch.ones(1, 4, 16, 32)
        with sdpa_kernel(backend):
            attend = partial(torch.nn.functional.scaled_dot_product_attention, q, q, q)
            counts.append(flops_of(attend, tmp_path / f"{backend.name}.json"))
    assert counts[0] == counts[1] > 0
