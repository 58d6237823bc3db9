"""What may leave a recording: the allow-lists of the redactor, as data.

A name belongs here when it is public by itself: a published model family, an option that inference engines
document, a processor vendor. Nothing here is a list of what to hide; whatever is not listed is hidden.
"""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PROGRAMS = re.compile(
    r"python(\d(\.\d{1,2})?)?|pypy3?|vllm|sglang|torchrun|accelerate|uv|uvx|env|bash|sh|numactl|taskset|nice|time"
    r"|mpirun|srun"
)
# Folders that every machine has, or that a project makes for itself under this name.
PROGRAM_FOLDERS = frozenset({"", ".venv/bin", "venv/bin", "./.venv/bin", "/usr/bin", "/usr/local/bin", "/bin"})
# Scripts and modules that belong to published projects, or to the samples that come with spyreprof.
SCRIPTS = frozenset({"samples/serve.py", "samples/own_engine.py", "samples/hf_generate.py", "samples/interconnect.py"})
MODULE_ROOTS = frozenset({"vllm", "sglang", "torch", "transformers", "samples", "uvicorn", "http"})
# A script of the user keeps its name when the name consists of these words alone.
SCRIPT_WORDS = _words(
    """
    api app async batch bench benchmark chat client decode demo engine example generate generation http
    infer inference launch llm load main model offline online openai prefill profile queue run sample
    serve server spyre start step stream sync test text torch vllm worker
    """
)
PLAIN_WORDS = _words("serve run bench latency throughput chat complete generate launch healthy mixed")
OPTION_WORDS = SCRIPT_WORDS | _words(
    """
    activation algorithm attention auto backend batched block blocks cache caching capture chunk chunked
    code compilation compile concurrency config context count cpu cuda data dataset decoding deterministic
    device disable disabled distributed double dp draft dtype eager enable enabled encoder end engines ep
    executor expert experts factor fast feature ffn file flash float force format fraction generation
    goodput gpu graph graphs groups guided hidden host hub id ignore input inputs interrupt interval iters
    kernel kv label layers layout len length level limit linear local log logging lora loras master max mem
    memory metadata metric metrics min mla mm modality mode moe ms multi nccl netns new no node nodes num
    off on operators options output overlap override p padding page pages parallel parser partial path per
    percent percentile percentiles pipeline policy pool port pp preemption prefix processes prompt prompts
    quantisation quantization random rank ranks rate ratio reasoning request requests result results retries
    revision rope running safetensors scale scaling scenario schedule scheduler scheduling scheme seconds
    seed seq seqs served shapes shared shm size sizes skip slo slow sparse spec speculative ssl steps stop
    strategy swap sync target template tensor theta thread threads time timeout token tokenizer tokens tool
    top total tp trace transfer trust type uniform url usage use util utilization version vocab wait waiting
    warmup weight weights width window with workers world
    """
)
# Names of options that may hold secrets; not even a number after them leaves.
SECRET_WORDS = _words(
    """
    key apikey token pass password passwd passphrase pin pwd secret credential credentials auth bearer
    cookie signature user username login session
    """
)
# "token" is also the unit of the trade: these names hold sizes.
TOKEN_COUNTS = re.compile(r"(max|min|num|total|batched|long|prefill|new|skip|stop|eos|bos|pad)[a-z0-9-]*tokens?[a-z-]*")
# Options that take no value, so that the word after them is not swallowed.
FLAGS = _words(
    """
    --compile --no-prefix-caching --enable-prefix-caching --no-enable-prefix-caching --enable-chunked-prefill
    --enforce-eager --no-enable-chunked-prefill --trust-remote-code --disable-log-requests
    --disable-log-stats --enable-expert-parallel --help --version
    """
)
PYTHON_FLAGS = _words("-u -O -OO -B -I -s -S -E -v -q")

# Categories that the profilers of PyTorch and the vendors give to events.
EVENT_CATEGORIES = _words(
    """
    cpu_op user_annotation gpu_user_annotation cpu_instant_event python_function kernel gpu_memcpy gpu_memset
    cuda_runtime cuda_driver cuda_sync cuda_profiler_range ac2g fwdbwd overhead xpu_runtime xpu_driver
    privateuse1_runtime privateuse1_driver mtia_runtime mtia_ccp_events async_cpu_op collective_comm glow_runtime
    Operator Runtime Kernel Memcpy Memset async_npu async_task_queue HostToDevice Trace dynamo_timed enqueue
    dequeue async
    """
)

_NUMBER_TYPES = "auto|half|float|float16|float32|bfloat16|fp8|fp8_e4m3|fp8_e5m2|fp16|fp32|bf16|int8|int4"
# Values that are no numbers and may stand beside these options.
OPTION_VALUES: dict[str, re.Pattern[str]] = {
    "--scenario": re.compile(
        "prefill|decode|queue|healthy|kv-capacity|preemption|host|mixed|shared-prefix|shared-prefix-uncached|reasoning"
        "|compile|inefficient-kernel|none"
    ),
    "--compile-shapes": re.compile("static|dynamic"),
    "--linear-layout": re.compile("dense|tiled"),
    "--dtype": re.compile(_NUMBER_TYPES),
    "--kv-cache-dtype": re.compile(_NUMBER_TYPES),
    "--device": re.compile(r"(auto|cpu|cuda|rocm|xpu|spyre|hpu|tpu|mps)(:\d{1,3})?"),
    "--quantization": re.compile("awq|gptq|fp8|int8|int4|bitsandbytes|gguf|compressed-tensors|awq_marlin|gptq_marlin"),
    "--load-format": re.compile("auto|pt|safetensors|dummy|gguf|bitsandbytes|sharded_state"),
    "--distributed-executor-backend": re.compile("mp|ray|uni|external_launcher"),
    "--scheduling-policy": re.compile("fcfs|priority"),
    "--backend": re.compile("vllm|openai|openai-chat|inductor|eager|aot_eager|sendnn|mp|ray"),
    "--host": re.compile(r"127\.0\.0\.1|0\.0\.0\.0|localhost|::1"),
    "--dataset-name": re.compile("random|sharegpt|sonnet|burstgpt|hf|custom"),
    "--profile-window": re.compile("on|off"),
}
MODEL_OPTIONS = frozenset({"--model", "--model-path", "--tokenizer", "--speculative-model", "-m"})
QUANTISATION_OPTIONS = frozenset({"--quantization", "-q"})
PLAIN_VALUES = _words("true false yes no on off none auto all")

MODEL_OWNERS = _words(
    """
    ibm-granite meta-llama mistralai qwen google microsoft deepseek-ai facebook openai openai-community
    bigscience tiiuae eleutherai huggingfacetb nvidia amd intel redhatai neuralmagic allenai tinyllama
    """
)
MODEL_FAMILIES = _words(
    """
    granite llama codellama tinyllama meta mistral mixtral ministral codestral qwen qwen1 qwen2 qwen3
    gemma codegemma phi deepseek falcon opt gpt gpt2 gptj neox pythia bloom smollm smollm2 smollm3 olmo
    olmoe starcoder nemotron roberta bge
    """
)
_MODEL_WORDS = _words(
    """
    instruct base chat code coder it preview mini small medium large nano tiny micro vision guardian
    embedding english multilingual moe oss distill lite hf awq gptq gguf fp8 bf16 fp16 int4 int8 w8a8
    w4a16 dynamic quantized sparse math r1 v2 v3 k m s
    """
)
_MODEL_SIZE = re.compile(r"v?\d{1,4}[bmkt]?|\d{1,2}x\d{1,3}b|a\d{1,3}b|e\d{1,2}b")

DTYPES = _words(
    """
    float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int8 uint8 int4 complex64 bool int64
    int32
    """
)
DEVICE_KINDS = _words("cpu cuda rocm hip xpu spyre aiu hpu tpu mps npu mtia privateuse1 accelerator")
# How traces name a device that has no number of its own.
ACCELERATOR = re.compile(r"(GPU|NPU|XPU|AIU|CUDA|HIP|MTIA|[Dd]evice)[ :]?\d{1,3}|Ascend Hardware|Spyre|AIU")
MACHINES = _words("x86_64 aarch64 arm64 s390x ppc64le riscv64")
PACKAGES = _words("python torch vllm torch_spyre vllm_spyre sendnn transformers sglang triton numpy")
UNITS = _words("% ns us µs ms s min h b kb mb gb tb kib mib gib")
# Three numbers at most: four may be an address.
VERSION = re.compile(
    r"\d{1,4}(\.\d{1,4}){0,2}((a|b|rc|\.post|\.dev)\d{1,8})*"
    r"(\+(cpu|xpu|cu\d{2,3}|rocm\d{1,2}(\.\d{1,2}){0,2}|git[0-9a-f]{7,12}|g[0-9a-f]{7,12}))?"
)
# Published packages whose functions and files may be named; the standard library is marked by the recorder.
FRAME_ROOTS = _words(
    """
    <stdlib> torch torchvision vllm vllm_spyre sendnn_inference torch_spyre transformers accelerate
    tokenizers safetensors huggingface_hub sglang triton numpy uvicorn uvloop starlette fastapi pydantic
    zmq msgspec prometheus_client ray flashinfer xformers _spyreprof
    """
)
_FRAME_FUNCTION = re.compile(r"[A-Za-z_<][A-Za-z0-9_.<>]{0,119}")
_FRAME_FILE = re.compile(r"[A-Za-z0-9_./<>-]{1,159}\.pyx?")
# What the recorder draws: 32 hexadecimal digits, at least one of them a letter in all but one of three million.
RUN_ID = re.compile(r"(?=.*[a-f])[0-9a-f]{8,32}")
# A processor names its maker and a model number; a hypervisor may write anything there.
PROCESSOR_WORDS = _words(
    """
    intel(r) xeon(r) core(tm) amd epyc ryzen threadripper pro gold silver bronze platinum cpu processor
    ibm power8 power9 power10 power11 telum ibm/s390 machine arm neoverse neoverse-n1 neoverse-n2
    neoverse-v1 neoverse-v2 cortex ampere altra graviton graviton2 graviton3 graviton4 apple max ultra
    virtual qemu version icelake skylake cascadelake sapphirerapids emeraldrapids genoa milan rome
    naples turin ghz @ with and for generation zen core cores series
    """
)
PROCESSOR_NUMBER = re.compile(
    r"[a-z]{0,3}\d{1,2}-\d{3,5}[a-z]{0,3}|[a-z]?\d{1,5}[a-z0-9+]{0,3}|v\d|\d\.\d{2}ghz|\d{1,3}-core"
)


def is_public_file(file: str) -> bool:
    """Whether a Python file belongs to a published package: decided by the first folder of its place in it."""
    root, slash, rest = file.partition("/")
    parts = rest.split("/")
    return bool(slash) and root in FRAME_ROOTS and _FRAME_FILE.fullmatch(file) is not None and ".." not in parts


def is_public_function(function: str, file: str) -> bool:
    """Whether the name of a function may be shown beside its file."""
    return is_public_file(file) and _FRAME_FUNCTION.fullmatch(function) is not None


def is_public_model(name: str) -> bool:
    """Whether a model name consists of a published family and words and sizes that say nothing private."""
    owner, _, bare = name.lower().rpartition("/")
    if owner and owner not in MODEL_OWNERS:
        return False
    first, *rest = re.split(r"[-_.]", bare)
    family = re.sub(r"\d+$", "", first)
    known = first in MODEL_FAMILIES or family in MODEL_FAMILIES
    return known and all(word in _MODEL_WORDS or word in MODEL_FAMILIES or _MODEL_SIZE.fullmatch(word) for word in rest)
