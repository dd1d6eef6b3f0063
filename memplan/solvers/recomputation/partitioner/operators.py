"""Classes of operators that PyTorch's partitioner distinguishes, by their names in ATen and prims.

From `get_default_op_list` of torch/_functorch/partitioners.py, PyTorch 2.13; the tests hold it against the
PyTorch that is installed. Left out are operators that change their inputs in place.
"""

from __future__ import annotations

import re


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


GETITEM = "getitem"
"""One of the results of an operation that has several."""

VIEWS = _names(
    """
    squeeze unsqueeze alias view slice t broadcast_in_dim expand as_strided permute select split
    """
)
"""Operators that no rule keeps from recomputation."""

CHEAP = VIEWS | _names(
    """
    getitem __and__ __lshift__ __or__ __rshift__ __xor__ _grad_sum_to_size
    _low_memory_max_pool_offsets_to_indices _to_copy _unsafe_view abs acos acosh add addcdiv addcmul amax
    angle any arange argmax asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not
    bitwise_or bitwise_right_shift bitwise_xor broadcast_tensors ceil celu clamp clamp_max clamp_min clip
    clone conj_physical convert_element_type copysign cos cosh deg2rad digamma div elu empty empty_like eq
    equal erf erfc erfinv exp exp2 expm1 float_power floor fmax fmin fmod frac frexp full full_like gather
    gcd ge gelu gelu_backward gt hardshrink hardsigmoid hardtanh heaviside hypot i0 igamma igammac index
    iota isfinite isinf isnan isneginf isposinf lcm ldexp le leaky_relu lerp lgamma lift_fresh_copy log
    log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit
    logit_backward lt masked_fill max maximum mean min minimum mish mul mvlgamma nan_to_num
    native_dropout_backward ne neg new_zeros nextafter ones polygamma positive pow prepare_softmax_online
    rad2deg reciprocal relu relu6 remainder reshape round rrelu rsqrt rsub scalar_tensor selu sgn sigmoid
    sigmoid_backward sign signbit silu silu_backward sin sinc sinh softplus softshrink special_airy_ai
    special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t
    special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w
    special_entr special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he special_i0e
    special_i1 special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
    special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
    special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_xlog1py special_zeta sqrt
    square std sub sum sum_to_size tan tanh tanh_backward threshold threshold_backward to triu true_divide
    trunc type_as var var_mean where xlogy zeros zeros_like
    """
)
"""Operators that may be recomputed at any share: little work for what they read."""

RANDOM = _names("native_dropout rand_like randn_like")

EXPENSIVE = _names(
    """
    mm convolution convolution_backward bmm addmm _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _flash_attention_forward _efficient_attention_forward
    upsample_bilinear2d _scaled_mm
    """
)
"""Operators that are recomputed only if the knapsack says so."""

FUSIBLE = CHEAP | RANDOM
"""Operators that become one kernel with a neighbour of this set."""

CAT = "cat"
"""Operator into which what it reads can be fused, and that can be fused into nothing."""

FREE = frozenset(["lift_fresh_copy"])
"""Operators, besides VIEWS, that no rule keeps from recomputation."""

_OURS = {"dropout_mask": "native_dropout"}
"""The trace takes dropout apart."""

_NUMBERED = re.compile(r"_\d+$")


def operator(name: str) -> str:
    """Return the operator of an operation by its name from `plan profile`: `add` of `h.3.mlp/add_12`."""
    # The profiler numbers repeated names: add, add_1, add_2, …
    last = _NUMBERED.sub("", name.rpartition("/")[2])
    return _OURS.get(last, last)
