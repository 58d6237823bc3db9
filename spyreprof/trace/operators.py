"""How much an operator must compute and move, from its name, shapes and dtypes.

The models count what the mathematics needs: each input and the output moved once, two operations per
multiply-add. Attention counts the whole query x key rectangle: whether a call is causal does not show in its
shapes, so causal prefill attention is counted up to twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

# Bytes per element, by the names that the profiler gives to dtypes.
DTYPE_BYTES: dict[str, int] = {
    "double": 8,
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2fnuz": 1,
    "long int": 8,
    "long": 8,
    "int": 4,
    "short int": 2,
    "short": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
}

Shape = list[int]


class Work(NamedTuple):
    """What an operator must compute and move."""

    flops: int
    bytes: int


@lru_cache(maxsize=65536)
def operator_work(name: str, dims_json: str | None, types_json: str | None) -> Work | None:
    """The work of an operator, or None when it has no model or its shapes or dtypes are unknown.

    Args:
        name: operator name, e.g. "aten::addmm".
        dims_json: the trace's "Input Dims", e.g. "[[128], [16, 64], [64, 128], [], []]".
        types_json: the trace's "Input type", e.g. '["float", "float", "float", "Scalar", "Scalar"]'.
    """
    model = _model_of(name)
    if model is None or dims_json is None or types_json is None:
        return None
    try:
        dims = msgspec.json.decode(dims_json, type=list[Any])
        types = msgspec.json.decode(types_json, type=list[str])
        return model(dims, types)
    # A shape that the formula cannot take apart is an unknown shape.
    except (msgspec.DecodeError, ValueError, TypeError, IndexError, KeyError, RecursionError):
        return None


Model = Callable[[list[Any], list[str]], Work]


def _model_of(name: str) -> Model | None:
    if name.startswith(("aten::_scaled_dot_product_", "aten::_flash_attention", "aten::_efficient_attention")):
        return None if name.endswith("_backward") else _attention
    return _MODELS.get(name)


def _tensor(dims: list[Any], index: int, rank: int | None = None) -> Shape:
    shape = dims[index]
    if not isinstance(shape, list) or not shape or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("not the shape of a tensor")
    if rank is not None and len(shape) != rank:
        raise ValueError("a tensor of another rank")
    return shape


def _bytes(shape: Shape, dtype: str) -> int:
    return math.prod(shape) * DTYPE_BYTES[dtype]


def _matrix_product(a: Shape, b: Shape, dtypes: tuple[str, str], extra_bytes: int = 0) -> Work:
    """[..., m, k] x [..., k, n] with broadcasting of what stands before; the output has the first dtype."""
    *batch_a, m, k = a
    *batch_b, k_b, n = b
    if k != k_b:
        raise ValueError("inner sizes differ")
    out = [*_broadcast(batch_a, batch_b), m, n]
    moved = _bytes(a, dtypes[0]) + _bytes(b, dtypes[1]) + _bytes(out, dtypes[0])
    return Work(2 * math.prod(out) * k, moved + extra_bytes)


def _broadcast(a: Shape, b: Shape) -> Shape:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    shorter = [1] * (len(longer) - len(shorter)) + shorter
    if any(x != y and 1 not in (x, y) for x, y in zip(longer, shorter, strict=True)):
        raise ValueError("shapes do not broadcast")
    return [y if x == 1 else x for x, y in zip(longer, shorter, strict=True)]


def _product_at(first: int, rank: int | None = None) -> Model:
    """A product of the inputs `first` and `first` + 1; the one before, if any, is added to it."""

    def model(dims: list[Any], types: list[str]) -> Work:
        added = _bytes(_tensor(dims, 0), types[0]) if first == 1 else 0
        a, b = _tensor(dims, first, rank), _tensor(dims, first + 1, rank)
        return _matrix_product(a, b, (types[first], types[first + 1]), added)

    return model


def _matmul(dims: list[Any], types: list[str]) -> Work:
    a, b = _tensor(dims, 0), _tensor(dims, 1)
    # A vector on the left is a row, on the right a column.
    a = [1, *a] if len(a) == 1 else a
    b = [*b, 1] if len(b) == 1 else b
    return _matrix_product(a, b, (types[0], types[1]))


def _matrix_vector_at(first: int) -> Model:
    """A matrix times a vector: the inputs `first` and `first` + 1; the one before, if any, is added to it."""

    def model(dims: list[Any], types: list[str]) -> Work:
        added = _bytes(_tensor(dims, 0), types[0]) if first == 1 else 0
        matrix, vector = _tensor(dims, first, 2), _tensor(dims, first + 1, 1)
        return _matrix_product(matrix, [*vector, 1], (types[first], types[first + 1]), added)

    return model


def _linear_with_weight(weight: int) -> Model:
    """x [..., k] times the transpose of the weight [n, k] at input `weight`; a bias may follow."""

    def model(dims: list[Any], types: list[str]) -> Work:
        x, (n, k) = _tensor(dims, 0), _tensor(dims, weight, 2)
        bias = dims[weight + 1] if len(dims) > weight + 1 else []
        bias_bytes = _bytes([n], types[weight + 1]) if bias == [n] else 0
        rows = math.prod(x[:-1])
        return _matrix_product([rows, x[-1]], [k, n], (types[0], types[weight]), bias_bytes)

    return model


def _attention(dims: list[Any], types: list[str]) -> Work:
    """softmax(q k^T) v over q [..., heads, q, d], k [..., kv heads, k, d], v [..., kv heads, k, d_v]."""
    q, k, v = (_tensor(dims, index, 4) for index in range(3))
    batch, heads, q_len, head_dim = q
    k_len, v_dim = v[-2], v[-1]
    if k[-1] != head_dim or k[-2] != k_len or (k[1] and heads % k[1]):
        raise ValueError("queries, keys and values do not match")
    flops = 2 * batch * heads * q_len * k_len * (head_dim + v_dim)
    inputs = sum(_bytes(shape, types[index]) for index, shape in enumerate((q, k, v)))
    return Work(flops, inputs + _bytes([batch, heads, q_len, v_dim], types[0]))


_MODELS: dict[str, Model] = {
    "aten::mm": _product_at(0, rank=2),
    "aten::_int_mm": _product_at(0, rank=2),
    "aten::addmm": _product_at(1, rank=2),
    "aten::addmm_": _product_at(1, rank=2),
    "aten::_addmm_activation": _product_at(1, rank=2),
    "aten::bmm": _product_at(0, rank=3),
    "aten::baddbmm": _product_at(1, rank=3),
    "aten::baddbmm_": _product_at(1, rank=3),
    "aten::matmul": _matmul,
    "aten::dot": _matmul,
    "aten::mv": _matrix_vector_at(0),
    "aten::addmv": _matrix_vector_at(1),
    "aten::addmv_": _matrix_vector_at(1),
    "aten::linear": _linear_with_weight(1),
    "aten::mkldnn_linear": _linear_with_weight(1),
    "mkldnn::_linear_pointwise": _linear_with_weight(1),
    # Its second input is the packed weight, whose shape says nothing.
    "mkl::_mkl_linear": _linear_with_weight(2),
    "aten::scaled_dot_product_attention": _attention,
}
