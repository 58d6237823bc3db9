"""Secrets leave a command line before it reaches the disk.

Redaction errs on the side of taking too much: a recording is passed on to other people.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

REDACTED = "[redacted]"

_SECRET_WORD = re.compile(
    r"key|token(?!i[sz])|password|passwd|passphrase|secret|credential|auth|bearer|cookie|signature", re.IGNORECASE
)
# Beside one of these words "key" and "token" are what a model attends to, not what opens a door.
_OF_MODELS = frozenset(
    {
        "max", "min", "num", "total", "batched", "prefill", "decode", "special", "stop", "eos", "bos", "pad", "new",
        "skip", "id", "ids", "threshold", "len", "length", "budget", "limit", "count", "per", "value", "head", "heads",
        "dim", "size", "hidden", "prompt", "input", "output", "context", "generation", "vocab",
    }
)  # fmt: skip
_OF_DOORS = frozenset(
    {"api", "access", "private", "secret", "hf", "hub", "huggingface", "git", "github", "aws", "user", "client"}
)
_NAME_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")
# The shortest value of a secret variable that is looked for in arguments: shorter ones occur by chance.
_LEAST_SECRET_LENGTH = 6
# The second form takes an unescaped slash inside a password, but no port and path before some later "@".
_URL_USERINFO = re.compile(
    r"(?i)\b([a-z][a-z0-9+.-]*://)"
    r"(?:[^/?#\s@'\"]*(?:@[^/?#\s@'\"]*)*@|[^/?#\s@'\":]+:(?!\d+(?:[/?#\s'\"]|$))[^\s@'\"]*@)"
)
_QUERY_SECRET = re.compile(r"([?&;])([^=&;#\s]+)=([^&;#\s]*)")
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|x-[a-z-]*(?:key|token|auth)[a-z-]*|api-key|cookie|set-cookie)\b(\s*[:=]\s*).*",
    re.DOTALL,
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}")
# A token of Hugging Face has capitals or digits; hf_generate.py has not.
_KNOWN_SHAPES = re.compile(
    r"\b(?:"
    r"sk-[A-Za-z0-9_-]{6,}|(?:pk|rk|sk)_(?:live|test)_[A-Za-z0-9]{8,}"
    r"|hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}|api_org_[A-Za-z0-9]{8,}"
    r"|gh[oprsu]_[A-Za-z0-9]{8,}|github_pat_[A-Za-z0-9_]{8,}|glpat-[A-Za-z0-9_-]{8,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_-]{10,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{8,}|npm_[A-Za-z0-9]{10,}|dop_v1_[a-f0-9]{10,}|nvapi-[A-Za-z0-9_-]{8,}"
    r"|eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"
    r")"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL)
# Long runs of letters and digits; separators of paths, words and versions end a run, so names do not match.
_RUN = re.compile(r"[A-Za-z0-9+]{24,}={0,2}")
_HEX_RUN = re.compile(r"\b[0-9a-fA-F]{32,}\b")
_ASSIGNMENT = re.compile(r"^(-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)=(.*)$", re.DOTALL)
# `"api_key": "..."`, `password = ...`, `token=...` inside JSON, connection strings and shell fragments.
_INNER_PAIR = re.compile(
    r"""(["']?)([A-Za-z_][A-Za-z0-9_.-]*)\1(\s*[:=]\s*)("(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|[^\s,;&}\])'"]+)"""
)
# `--api-key ...` inside a shell fragment
_INNER_OPTION = re.compile(r"""(?<!\S)(--?[A-Za-z][A-Za-z0-9_.-]*)(\s+)(?!--)("[^"]*"?|'[^']*'?|\S+)""")

# What explains a run's speed. Everything else in the environment stays unread.
_ENVIRONMENT_NAMES = frozenset(
    {
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
    }
)
_ENVIRONMENT_PREFIXES = ("VLLM_", "SENDNN_", "SPYRE_", "TORCH_", "PYTORCH_", "KMP_", "GOMP_")


def is_secret_name(name: str) -> bool:
    """Whether an option, key or variable of this name is taken to hold a secret."""
    words = [word.lower() for word in _NAME_WORDS.findall(name)]
    telling = {found[0].lower() for word in words if (found := _SECRET_WORD.search(word))}
    if not telling or not telling <= {"key", "token"} or _OF_DOORS.intersection(words):
        return bool(telling)
    return not _OF_MODELS.intersection(words)


def redact_text(text: str) -> str:
    """Replace what looks like a secret inside a free text; the rest stays as it is."""
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _URL_USERINFO.sub(rf"\1{REDACTED}@", text)
    text = _HEADER.sub(rf"\1\2{REDACTED}", text)
    text = _BEARER.sub(rf"\1 {REDACTED}", text)
    text = _QUERY_SECRET.sub(_redact_query, text)
    text = _INNER_PAIR.sub(_redact_pair, text)
    text = _INNER_OPTION.sub(_redact_option, text)
    text = _KNOWN_SHAPES.sub(REDACTED, text)
    text = _HEX_RUN.sub(REDACTED, text)
    return _RUN.sub(lambda match: REDACTED if _looks_random(match[0]) else match[0], text)


def redact_command(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
    """Redact a command line, argument by argument.

    The value after an option with a secret's name is taken whatever it looks like, and so is the value of a
    variable with such a name, wherever a shell has put it; every other argument goes through `redact_text`.
    """
    values = [value for name, value in (environment or {}).items() if is_secret_name(name)]
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _LEAST_SECRET_LENGTH:
            argv = [argument.replace(value, REDACTED) for argument in argv]
    redacted: list[str] = []
    secret_follows = False
    for argument in argv:
        # a value may begin with one dash; `--name` after a secret's option means that the option had no value
        if secret_follows and not re.match(r"--[A-Za-z]", argument):
            redacted.append(REDACTED)
            secret_follows = False
            continue
        secret_follows = False
        assignment = _ASSIGNMENT.match(argument)
        if assignment is not None:
            name, value = assignment.groups()
            hidden = REDACTED if is_secret_name(name) else redact_text(value)
            redacted.append(f"{name}={hidden}")
            continue
        if _is_option(argument) and is_secret_name(argument):
            secret_follows = True
        redacted.append(redact_text(argument))
    return redacted


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Pick the variables that explain a run's speed, values redacted; all others are left out."""
    allowed: dict[str, str] = {}
    for name in sorted(environment):
        if name in _ENVIRONMENT_NAMES or name.startswith(_ENVIRONMENT_PREFIXES):
            if is_secret_name(name):
                continue
            allowed[name] = redact_text(environment[name])
    return allowed


def strip_userinfo(url: str) -> str:
    """Remove `user:password@` from a URL, whole, so that what remains is a URL again."""
    return _URL_USERINFO.sub(r"\1", url)


def _is_option(argument: str) -> bool:
    return argument.startswith("-") and argument not in {"-", "--"}


def _redact_query(match: re.Match[str]) -> str:
    separator, name, value = match.groups()
    return f"{separator}{name}={REDACTED if value and is_secret_name(name) else value}"


def _redact_pair(match: re.Match[str]) -> str:
    quote, name, separator, value = match.groups()
    if not is_secret_name(name) or REDACTED in value:
        return match[0]
    value_quote = value[0] if value[0] in "\"'" else ""
    return f"{quote}{name}{quote}{separator}{value_quote}{REDACTED}{value_quote}"


def _redact_option(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}{REDACTED}" if is_secret_name(match[1]) else match[0]


def _looks_random(run: str) -> bool:
    """Whether a run of letters and digits has the spread of a generated key rather than of words."""
    kinds: Iterable[bool] = (
        any(c.isdigit() for c in run),
        any(c.islower() for c in run),
        any(c.isupper() for c in run),
    )
    if sum(kinds) < 2 or not any(c.isdigit() for c in run):
        return False
    total = len(run)
    entropy_bits = -sum(n / total * math.log2(n / total) for n in Counter(run).values())
    # Generated base62 of 24 and more characters lies near 4.2 bits a character, words with digits below 3.5.
    return entropy_bits >= 3.5
