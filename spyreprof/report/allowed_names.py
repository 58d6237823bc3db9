"""Which names of kernels and operators in a trace may leave: allow-lists as data, and how a name is taken apart.

Names pass when they consist of words of the trade alone, in a namespace of a published library or as names of generated
kernels do. A private name may stand in a public namespace, too. Whatever else a name holds is withheld, piece by piece.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Longer names are withheld as a whole.
MAX_NAME = 512

# The copies and fills of CUDA and HIP, and PyTorch's own marks, are sentences of a fixed form.
_WHOLE = re.compile(
    r"Mem(cpy|set)( (HtoD|DtoH|DtoD|PtoP|HtoH))?( ?\((Pageable|Pinned|Device|Managed|Array|Unknown|HtoD|DtoH|DtoD|PtoP)"
    r"( -> (Pageable|Pinned|Device|Managed|Array|Unknown))?\))?"
    r"|ProfilerStep#\d{1,6}|ProfilerStep\*"
    r"|(autograd::engine::evaluate_function: )?([A-Z][A-Za-z]{1,40}Backward\d|torch::autograd::AccumulateGrad)"
    r"|enumerate\(DataLoader\)#_(Single|Multi)ProcessDataLoaderIter\.__next__"
    r"|Optimizer\.(step|zero_grad)#(Adam|AdamW|SGD|Adagrad|Adamax|RMSprop|LBFGS)\.(step|zero_grad)"
    r"|record_param_comms|CompiledFunction(Backward)?|Torch-Compiled Region: \d{1,4}/\d{1,4}"
    r"|(execute_)?context_\d{1,4}\(\d{1,8}\)_generation_\d{1,4}\(\d{1,8}\)"
    r"|cuda(Launch|Memcpy|Memset|Stream|Event|Device|Graph|Func|Malloc|Free|Host|Occupancy)[A-Za-z]{0,40}(_v\d{4,5})?"
    r"|cu(LaunchKernel|Launch)[A-Za-z]{0,10}|hip(Launch|Memcpy|Memset|Stream|Event|Device|Graph|ExtModule)[A-Za-z]{0,40}"
)
# Namespaces of operators, as a whole name: aten::addmm, c10d::allreduce_, _C::rms_norm.
_OPERATOR = re.compile(
    r"(aten|c10d|c10|prims|prim|inductor|torchao|torchvision|quantized|fbgemm|_c10d_functional|symm_mem|flash_attn|flashinfer"
    r"|xformers|_C|_C_cache_ops|_C_custom_ar|_moe_C|_vllm_fa[23]_C|vllm|sgl_kernel|spyre|torch_spyre|npu|mkldnn|mkl"
    r"|nccl|rccl|gloo|xccl|hccl|mpi)(::|:)[a-z_][a-z0-9_]{0,79}(\.[a-z_]{1,40})?"
)
# Namespaces of kernels, which begin a name.
_NAMESPACES = (
    "at::",
    "at_cuda_detail::",
    "c10::",
    "cask_",
    "ck::",
    "cub::",
    "cublas",
    "cudnn",
    "cusparse",
    "cute::",
    "cutlass::",
    "fbgemm_gpu::",
    "flash::",
    "pytorch_flash::",
    "rocprim::",
    "std::",
    "thrust::",
    "vllm::",
)
_LIBRARY_KERNEL = re.compile(
    r"(nccl|rccl)(DevKernel|Kernel)_[A-Za-z0-9_]{1,100}|Cijk_[A-Z][a-z]{3}_[A-Z][a-z]{3}(_[A-Za-z0-9]{1,16}){1,100}_?"
)
_LANGUAGE = _words(
    """
    void bool char short int long float double unsigned signed const true false auto lambda operator anonymous
    namespace half bfloat16 __half __half2 __nv_bfloat16 __nv_bfloat162 __hip_bfloat16 uint8_t int8_t uint16_t
    int16_t uint32_t int32_t uint64_t int64_t size_t instance type volatile decltype nullptr float2 float4 int2
    int4 long2 double2 ncclDevComm ncclWork ncclDevKernelArgs ncclDevKernelArgsStorage TensorListMetadata
    OffsetCalculator TrivialOffsetCalculator AdamFunctor adamMode_t Params kernel_grad_params kernel_conv_params
    cudnnTensorStruct
    """
)
_WORDS = _words(
    """
    abs activation add addmm align aligned all alloc allgather allreduce alltoall amax ampere and any apply
    arange argmax argmin asm attention attn attention2 avg awq backward barrier batch batched bcast bf16
    bfloat16 bias bitwise blackwell block blocked blocks bmm broadcast bwd cache cast cat causal clamp clone col
    combine compute contiguous conv convert copy cos count cross cublas cuda cudnn cumsum cutlass data decode
    dense dequant dequantize dev device dgrad direct dispatch div dot down dropout dtype elementwise embedding
    entropy epilogue eq erf even exp expand expert experts fill finalize find first flash flashattn flat flatten
    float float16 float32 fmha fold forward fp16 fp32 fp4 fp8 full fused fwd gate gated gather ge gelu gemm gemv
    gemvx generic gptq grad grid group grouped gt half head heads hidden hopper idx index inner input int int4
    int8 interleaved inverse is item k kernel kernel1 kernel2 kernels key kv large last layer layernorm
    layer_norm ldg ldg4 ldg8 le linear ll ll128 load log logits loop lora lt main mask masked matmul max mean
    mem memory merge mha min mix mm moe mul mul1 multi multihead mxfp4 mxfp8 native ne neg nhwc nchw nn nonzero
    norm nt num offset on one online op or out outer output pack pad padding paged partial partition per permute
    pointwise poi pool position pow prefill prep probs proj q qk qkv quant quantize quantized query rand radix
    range reciprocal red reduce reducescatter reduction ref relu repeat reshape residual ring rms rmsnorm rope
    rotary row rsqrt s sample scale scaled scan scatter score sdpa select seg segment selected self send
    sequence shared shuffle sigmoid sign silu sin single size slice small softmax sort spec splitk split splits
    splitkreduce sqrt square squeeze sr stack stage stages state step store stride strided sub sum sum1 swap
    swiglu swish sync t take tanh tem tensor tensorop tile tiled tilesize tma tn to token tokens top topk
    transform transpose tree tri triton triu tt two type unary unfold unpack unroll unrolled unsafe unsqueeze up
    update vec vector vectorized view views volta wait warp warpgroup warpgroupsize warps weight weights where
    wgmma wgrad xmma zero zeros turing execute exec cmpt dmai dmao simt splitkr nvjet tst hsh bz tnt ntn nnn tnn
    coopa coopb sgemm dgemm hgemm cgemm gcgemm scudnn hcudnn winograd interior strideda stridedb xregs convolve
    implicit indexed indices convolution pool2d relayout codegen rowwise adagrad adam weighted unweighted cta
    pooled embs scalar fft2d r2c c2r reset fprop virtual alg0 engine aclnn ai core mat set off wmma trans conv2d
    conv3d backprop filter addcmul addcdiv inplace muls divs adds real common memset relu6 with maxpool matmulv2
    matmulv3 transdata train optimized traits internal bounds check detach detached sendrecv simple layout cpu
    gpu aicore aicpu bytecode nhwckrsc
    """
)
# Shapes, architectures and types in names of generated kernels: 128x128, sm90, s16816gemm, bf16bf16, f2f.
_CODE = re.compile(
    r"\d{1,4}(u|ul|ull|l|f|x)?|\d{1,4}x\d{1,4}(x\d{1,4}){0,2}|(sm|gfx|mt|wg|wgm|bm|bn|bk)\d{1,4}(x\d{1,4}){0,3}"
    r"|[sfihd]?\d{3,5}(gemm|fprop|wgrad|dgrad)?|((bf|f|s|i|u|e|fp|int|tf)\d{1,2}){1,4}|[tn]{2,3}|[a-z]\d{1,2}"
    r"|align[abc]?\d{1,2}|tensor\d{1,3}x\d{1,3}x\d{1,3}|warpsize\dx\dx\d|sliced\dx\d|tile\d{1,4}t?"
    r"|ldg\d{1,2}|split\d?k?|tilesize\d{1,4}(x\d{1,4}){2}|warpgroupsize\dx\dx\d|f2f|[a-z]"
)
# A demangled C++ name: identifiers, types and template arguments.
_SHAPE = re.compile(r"[\w:~<>(),*&\[\]{} .#+=!?-]+", re.ASCII)
_PIECE = re.compile(r"~?[A-Za-z_]\w*(?:::(?:\(anonymous namespace\)::)?[A-Za-z_]\w*)*|\d\w*|[^\w~]+|~", re.ASCII)
# Parts of C++ names that are namespaces.
_NAMESPACE_PARTS = frozenset(
    (*(name.removesuffix("::") for name in _NAMESPACES), "(anonymous namespace)", "native", "detail", "internal")
)
_LONG_NUMBER = re.compile(r"\d{7}")
_LONG_PART = 80
# AddmmAiCore: Addmm, Ai, Core.
_CAMEL = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d{1,4}")


def is_public_name(name: str) -> bool:
    """Whether a name of a kernel or operator may be shown as it is, without a look at its pieces."""
    return len(name) <= MAX_NAME and bool(_WHOLE.fullmatch(name) or _is_operator(name) or _is_library_kernel(name))


def pieces(name: str) -> list[tuple[str, bool]] | None:
    """A name in pieces, each with whether it may be shown; None where all of it must be withheld."""
    if len(name) > MAX_NAME or not _SHAPE.fullmatch(name) or name[0] == "<":
        return None
    found = [(piece, _is_public_piece(piece)) for piece in _PIECE.findall(name)]
    # Brackets and types around one private word would say nothing.
    if not any(public and _says_something(piece) for piece, public in found):
        return None
    return found


def _says_something(piece: str) -> bool:
    return (piece[0].isalpha() or piece[0] == "_") and piece not in _LANGUAGE


@cache
def _operator_words() -> frozenset[str]:
    """Words that operators of published libraries are named with, beside `_WORDS`."""
    text = resources.files("spyreprof.report").joinpath("operator_words.txt").read_text(encoding="utf-8")
    return frozenset(text.split())


def _is_operator(name: str) -> bool:
    if _OPERATOR.fullmatch(name) is None or _LONG_NUMBER.search(name):
        return False
    own = name.rpartition(":")[2]
    return all(_is_operator_word(word) for word in re.split(r"[_.]+", own) if word)


def _is_operator_word(word: str) -> bool:
    return word in _WORDS or word in _operator_words() or _CODE.fullmatch(word) is not None


def _is_of_library(name: str) -> bool:
    """Whether a C++ name stands in a library's namespace and is made of the trade's words alone."""
    if not name.startswith(_NAMESPACES):
        return False
    parts = [part for part in name.split("::") if part not in _LANGUAGE and part not in _NAMESPACE_PARTS]
    return all(len(part) <= _LONG_PART and _is_of_operator_words(part) for part in parts)


def _is_of_operator_words(identifier: str) -> bool:
    return all(
        _is_operator_word(part.lower())
        or ("".join(inner := _CAMEL.findall(part)) == part and all(_is_operator_word(word.lower()) for word in inner))
        for part in filter(None, identifier.split("_"))
    )


def _is_library_kernel(name: str) -> bool:
    return _LIBRARY_KERNEL.fullmatch(name) is not None and not _LONG_NUMBER.search(name)


def _is_public_piece(piece: str) -> bool:
    if not (piece[0].isalnum() or piece[0] in "_~"):
        return True
    if _LONG_NUMBER.search(piece):
        return False
    bare = piece.lstrip("~")
    if bare in _LANGUAGE or _is_of_library(bare) or _is_library_kernel(bare):
        return True
    if piece[0].isdigit():
        return _CODE.fullmatch(bare.lower()) is not None
    return all(part in _LANGUAGE or _is_of_known_words(part) for part in bare.split("::"))


def _is_of_known_words(identifier: str) -> bool:
    words: list[str] = []
    for part in filter(None, identifier.split("_")):
        known = part.lower() in _WORDS or _CODE.fullmatch(part.lower())
        inner = _CAMEL.findall(part)
        if not known and "".join(inner) != part:
            return False
        words += [part] if known else inner
    lowered = [word.lower() for word in words]
    return any(word in _WORDS for word in lowered) and all(word in _WORDS or _CODE.fullmatch(word) for word in lowered)
