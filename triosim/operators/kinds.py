"""The kind of an operator by its name: product, convolution, element-wise, view ...

Autograd's nodes (``NativeLayerNormBackward0``) and the ``..._backward`` calls are of the kind that they differentiate.
Operators that are not listed here are unknown: their bytes alone count, and a note names them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

Kind = Literal[
    "product", "convolution", "attention", "norm", "softmax", "loss", "pooling", "embedding", "elementwise",
    "reduction", "copy", "view", "creation", "index", "sort", "optimizer", "recurrent", "unknown",
]  # fmt: skip

ProductForm = Literal[
    "rows", "matrix", "added", "summed", "grouped", "outer", "bilinear", "contraction", "chain", "einsum"
]

#: Products by what they multiply. "rows": data (..., k) by a weight (n, k); "matrix": (..., k) by (k, n), or by a vector;
#: "added" and "summed": the last two tensors so, the latter over a batch that is added up; "grouped": rows of groups, in order.
PRODUCTS_BY_FORM: Mapping[ProductForm, str] = {
    "rows": "linear mkldnn_linear inner cdist",
    "matrix": "mm bmm matmul linalg_matmul int_mm scaled_mm mv dot vdot",
    "added": "addmm baddbmm addmm_activation addmv",
    "summed": "addbmm",
    "grouped": "grouped_mm scaled_grouped_mm",
    "outer": "outer ger kron addr",
    "bilinear": "bilinear trilinear",
    "contraction": "tensordot",
    "chain": "chain_matmul linalg_multi_dot",
    "einsum": "einsum",
}
_CONVOLUTIONS = " ".join(
    f"{prefix}{name}"
    for prefix in ("", "cudnn_", "miopen_", "mkldnn_", "mps_", "thnn_", "slow_")
    for name in (
        *("conv1d", "conv2d", "conv3d", "convolution", "convolution_overrideable", "convolution_transpose"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "conv_depthwise2d", "depthwise_convolution"),
    )
)
_POOLS = " ".join(
    f"{kind}_pool{n}d{end}"
    for kind in ("max", "avg", "adaptive_avg", "adaptive_max", "fractional_max", "lp")
    for n in (1, 2, 3)
    for end in ("", "_with_indices")
)

_NAMES: Mapping[Kind, str] = {
    "product": " ".join(PRODUCTS_BY_FORM.values()),
    "convolution": f"{_CONVOLUTIONS} cudnn_convolution_relu cudnn_convolution_add_relu miopen_convolution_relu"
    " miopen_convolution_add_relu slow_conv2d_forward slow_conv3d_forward",
    "attention": "scaled_dot_product_attention scaled_dot_product_flash_attention scaled_dot_product_efficient_attention"
    " scaled_dot_product_cudnn_attention scaled_dot_product_attention_math scaled_dot_product_fused_attention_overrideable"
    " scaled_dot_product_flash_attention_for_cpu flash_attention efficient_attention cudnn_attention"
    " flash_attention_forward efficient_attention_forward cudnn_attention_forward flex_attention",
    "norm": "batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_impl_index instance_norm"
    " native_batch_norm_legit native_batch_norm_legit_functional batch_norm_with_update layer_norm native_layer_norm"
    " group_norm native_group_norm rms_norm fused_rms_norm weight_norm weight_norm_interface batch_norm_stats"
    " batch_norm_elemt local_response_norm renorm",
    "softmax": "softmax log_softmax safe_softmax softmin gumbel_softmax masked_softmax",
    "loss": "cross_entropy_loss nll_loss nll_loss_nd nll_loss_forward nll_loss2d nll_loss2d_forward mse_loss l1_loss"
    " smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div cosine_embedding_loss"
    " margin_ranking_loss multi_margin_loss ctc_loss soft_margin_loss triplet_margin_loss poisson_nll_loss",
    "pooling": f"{_POOLS} mkldnn_max_pool2d mkldnn_adaptive_avg_pool2d cudnn_max_pool2d interpolate"
    " upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_nearest_exact2d upsample_bilinear2d"
    " upsample_bicubic2d upsample_linear1d upsample_trilinear3d grid_sampler grid_sampler_2d roi_align im2col col2im unfold"
    " unfold_backward",
    "embedding": "embedding embedding_bag embedding_renorm embedding_dense embedding_sparse"
    " split_embedding_codegen_lookup_rowwise_adagrad_function"
    " split_embedding_backward_codegen_rowwise_adagrad_unweighted_exact_cuda",
    "elementwise": "abs absolute acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bernoulli bitwise_and"
    " bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min clip"
    " copysign cos cosh deg2rad digamma div divide dropout elu eq erf erfc erfinv exp exp2 expm1 exponential feature_dropout"
    " alpha_dropout floor floor_divide fmax fmin fmod frac fused_dropout ge gelu glu greater greater_equal gt hardshrink"
    " hardsigmoid hardswish hardtanh heaviside hypot isclose isfinite isinf isnan ldexp le leaky_relu lerp less less_equal"
    " lgamma log log10 log1p log2 log_sigmoid log_sigmoid_forward logaddexp logical_and logical_not logical_or"
    " logical_xor logit lt masked_fill maximum minimum mish mul multiply mvlgamma nan_to_num native_dropout ne neg negative"
    " nextafter normal not_equal polar positive pow prelu prelu_kernel rad2deg random reciprocal relu relu6 remainder"
    " rms round rrelu rrelu_with_noise rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink sqrt"
    " square sub subtract tan tanh threshold to_copy trunc true_divide uniform where xlogy s_where log_normal geometric"
    " cauchy real imag conj_physical complex view_as_complex_copy special_expit norm_except_dim channel_shuffle"
    " native_channel_shuffle fake_quantize quantize_per_tensor dequantize amp_foreach_non_finite_check_and_unscale"
    " amp_update_scale isneginf isposinf float_power swiglu geglu softcap is_nonzero item local_scalar_dense equal"
    " bias_gelu bias_dropout_add rotary_embedding chain cast_transpose permute_tokens"
    " unpermute_tokens convert_element_type",
    "reduction": "sum mean amax amin max min argmax argmin prod var std var_mean std_mean norm linalg_vector_norm logsumexp"
    " all any count_nonzero nansum nanmean median mode aminmax cumsum cumprod cummax cummin logcumsumexp bincount histc"
    " linalg_norm frobenius_norm dist cosine_similarity trace",
    "copy": "copy clone contiguous to cat concat concatenate stack hstack vstack repeat tile repeat_interleave pad"
    " constant_pad_nd reflection_pad1d reflection_pad2d replication_pad2d replication_pad1d roll flip fliplr flipud tril triu"
    " rot90 pin_memory copy_from copy_from_and_resize resize copy_slices accumulate_grad block_diag"
    " reshape_copy unsafe_split_copy diag diag_embed pixel_shuffle pixel_unshuffle meshgrid cast type_as float half bfloat16"
    " double long int bool contiguous_format split_with_sizes_copy split_copy chunk_cat",
    "view": "view unsafe_view reshape flatten unflatten squeeze unsqueeze reshape_alias view_as ravel alias transpose"
    " swapaxes swapdims t permute movedim numpy_T mT mH H T adjoint expand expand_as broadcast_to slice narrow select split"
    " split_with_sizes chunk tensor_split unsafe_split unsafe_chunk unbind detach as_strided diagonal view_as_real"
    " view_as_complex unfold_view result_type lift_fresh lift numpy conj resolve_conj resolve_neg broadcast_tensors"
    " optional optional_not_null values indices set data requires_grad retain_grad align_to refine_names pin expand_copy",
    "creation": "arange zeros ones full empty rand randn randint randperm new_zeros new_ones new_full new_empty empty_strided"
    " new_empty_strided zeros_like ones_like full_like empty_like rand_like randn_like randint_like eye linspace logspace"
    " tensor scalar_tensor zero fill one_hot tril_indices triu_indices efficientzerotensor multinomial",
    "index": "index index_select gather take take_along_dim scatter scatter_add scatter_reduce index_put index_put_impl"
    " index_add index_copy index_fill masked_select nonzero masked_scatter put unsafe_index unsafe_index_put slice_scatter"
    " select_scatter searchsorted bucketize segment_reduce as_strided_scatter nms",
    "sort": "sort topk argsort unique unique2 unique_dim unique_consecutive kthvalue msort isin",
    "optimizer": "fused_adam fused_adamw fused_sgd fused_adagrad",
    "recurrent": "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell cudnn_rnn thnn_fused_lstm_cell thnn_fused_gru_cell"
    " mkldnn_rnn_layer",
}  # fmt: skip


def names(kind: Kind) -> frozenset[str]:
    """Return the bare names of a kind, as they are listed here."""
    return frozenset(_NAMES[kind].split())


def _compact(name: str) -> str:
    return name.replace("_", "").lower()


_KINDS: Mapping[str, Kind] = {_compact(name): kind for kind, names in _NAMES.items() for name in names.split()}
_NODE = re.compile(r"(\w+?)(Backward|_backward|_double_backward|_backward_data|BackwardData)\w*")


@lru_cache(maxsize=4096)
def kind_of(name: str) -> Kind:
    """Return the kind of a bare name (``triosim.operators.features.base_name``)."""
    found = _KINDS.get(_compact(name.removeprefix("foreach_")))
    if found is None:
        node = _NODE.fullmatch(name)
        found = _KINDS.get(_compact(node[1])) if node is not None else None
    if found is None and "attention" in name.lower():
        found = "attention"
    return found or "unknown"
