"""What a given file is, by its content: the beginning is looked at, never the name, never the whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spyreprof.errors import UserError
from spyreprof.recording import layout
from spyreprof.trace.text import Text, open_text

if TYPE_CHECKING:
    import os

# Most files say what they are in their first lines; some keep it behind lists of devices or of log lines.
_HEAD_BYTES = 2**16
_MOST_BYTES = 2**22
_PIECE_BYTES = 2**16
_SPACE = b" \t\r\n"


class InputKind(Enum):
    """What a file or folder may be. The value is a phrase for sentences: "X is {phrase}"."""

    RECORDING = "a recording"
    PACKED_RECORDING = "a packed recording"
    REPORT = "a report.json"
    TRACE = "a trace"
    SPEEDSCOPE = "a speedscope file"
    COLLAPSED_STACKS = "a file of collapsed stacks"
    METRICS = "a dump of Prometheus metrics"
    SERVER_LOG = "a vLLM log"
    BENCH_RESULT = "a result of vllm bench serve"
    GPU_TIMELINE = "a gpu_timeline table of TraceLens"
    AIU_SMI_LOG = "an aiu-smi log"
    CYCLE_TABLE = "a table of ideal cycles of the Spyre compiler"
    SCHEDULER_STEPS = "a dump of scheduler steps of sendnn-inference"
    MEMORY_TIMELINE = "a memory timeline of torch.profiler"
    OTHER_JSON = "JSON of an unknown kind"
    OTHER_TEXT = "text of an unknown kind"
    OTHER_ZIP = "a zip file that holds no recording"
    OTHER_COMPRESSION = "compressed with something other than gzip"
    OTHER_BINARY = "a binary file of an unknown kind"
    OTHER_FOLDER = "a folder that holds no recording"
    DAMAGED = "damaged beyond reading"
    EMPTY = "empty"

    @property
    def is_read(self) -> bool:
        """Whether `report` and `import` read it."""
        return self in _READ


STACKS = frozenset((InputKind.SPEEDSCOPE, InputKind.COLLAPSED_STACKS))
_READ = frozenset((InputKind.RECORDING, InputKind.PACKED_RECORDING, InputKind.REPORT, InputKind.TRACE, *STACKS))
_KNOWN_BUT_NOT_READ = frozenset(
    (
        InputKind.METRICS,
        InputKind.SERVER_LOG,
        InputKind.BENCH_RESULT,
        InputKind.GPU_TIMELINE,
        InputKind.AIU_SMI_LOG,
        InputKind.CYCLE_TABLE,
        InputKind.SCHEDULER_STEPS,
        InputKind.MEMORY_TIMELINE,
    )
)
_REMEDIES = {
    InputKind.DAMAGED: "Record or copy it again.",
    InputKind.EMPTY: "Record or copy it again.",
    InputKind.OTHER_COMPRESSION: "Decompress it first.",
    InputKind.OTHER_FOLDER: "Name the folder that `spyreprof record` made, or the files themselves.",
}
_USEFUL = (
    "Give a recording, a packed recording, a report.json, a trace (Chrome trace-event JSON), or call stacks "
    "(speedscope, collapsed)."
)


def not_read(path: str | os.PathLike[str], kind: InputKind) -> UserError:
    """The sentence for an input that is of no use here: what it is, and what would be of use."""
    later = ", which is not read yet" if kind in _KNOWN_BUT_NOT_READ else ""
    remedy = _REMEDIES.get(kind, _USEFUL)
    return UserError(f"{path} is {kind.value}{later}.", remedy)


def identify(path: str | os.PathLike[str]) -> InputKind:
    """Find out what a file or folder is.

    A file that is damaged inside is still what its beginning says; its reader tells of the damage.

    Raises:
        UserError: nothing is there, it is neither a file nor a folder, or it cannot be read.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return InputKind.RECORDING if (path / layout.MANIFEST).is_file() else InputKind.OTHER_FOLDER
        if not path.exists():
            raise UserError(f"There is no {path}.", "Check the path.")
        if not path.is_file():
            # a pipe or a device may never end
            raise UserError(f"{path} is neither a file nor a folder.", "Name a file.")
        return _identify_file(path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror or error}.", "Check the path and its permissions."
        ) from error


def _identify_file(path: Path) -> InputKind:
    with path.open("rb") as stream:
        magic = stream.read(8)
        if not magic:
            return InputKind.EMPTY
        if magic.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            size = stream.seek(0, 2)
            stream.seek(max(size - _MOST_BYTES, 0))
            # The list of what is in a zip file stands at its end.
            holds_manifest = layout.MANIFEST.encode() in stream.read(_MOST_BYTES)
            return InputKind.PACKED_RECORDING if holds_manifest else InputKind.OTHER_ZIP
        if magic.startswith(_COMPRESSIONS):
            return InputKind.OTHER_COMPRESSION
        stream.seek(0)
        return _identify_text(_Head(open_text(stream, str(path))))


# bzip2, xz, zstd, lz4
_COMPRESSIONS = (b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")


class _Head:
    """The beginning of a text without leading blanks, of which more is read only on demand, up to a limit."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._left_bytes = _MOST_BYTES
        self.data = b""
        self.whole = False
        while len(self.data) < _HEAD_BYTES and self._extend():
            self.data = self.data.lstrip(_SPACE)
        self.garbled = text.replaced > len(self.data) // 50
        self.cut = text.truncated

    def read_on(self) -> bool:
        """Read up to the limit; False where there is nothing more."""
        known_bytes = len(self.data)
        while self._extend():
            pass
        return len(self.data) > known_bytes

    def _extend(self) -> bool:
        if self.whole or self._left_bytes <= 0:
            return False
        piece = self._text.read(_PIECE_BYTES)
        self._left_bytes -= len(piece)
        self.data += piece
        self.whole = not piece
        return not self.whole


def _identify_text(head: _Head) -> InputKind:
    if not head.data and head.cut:
        return InputKind.DAMAGED
    if not head.data:
        return InputKind.EMPTY if head.whole else InputKind.OTHER_TEXT
    if _JSON_START.match(head.data):
        kind = _identify_json(head)
        if kind is not InputKind.OTHER_JSON:
            return kind
        # A log may begin with a bracket, too.
        return _identify_lines(head) or kind
    if head.garbled or _is_binary(head.data):
        return InputKind.OTHER_BINARY
    return _identify_lines(head) or InputKind.OTHER_TEXT


def _is_binary(data: bytes) -> bool:
    sample = data[:_HEAD_BYTES]
    # Terminal colours and a few stray bytes occur in logs.
    control = len(sample.translate(None, bytes(_NOT_CONTROL)))
    undecodable = sample.decode(errors="replace").count("\N{REPLACEMENT CHARACTER}")
    return control + undecodable > len(sample) // 50


_NOT_CONTROL = [byte for byte in range(256) if byte >= 32 or byte in b"\t\n\r\f\x1b"]

# ---- JSON

# An object with a key, a list of values, or either of them empty.
_JSON_START = re.compile(rb'\s*(\{\s*["}]|\[\s*([\[\]{"\d-]|true|false|null|$)|\{\s*$)')
# A text that does not end where the data ends matches, too: what is left of it must not be searched again.
_TOKEN = re.compile(rb'"(?P<text>[^"\\]*(?:\\.[^"\\]*)*)(?:"\s*(?P<colon>:)?|\\?\Z)|[{}\[\]]', re.DOTALL)
_NUMBERS = re.compile(rb"\[\s*\[\s*-?\d+\s*,\s*-?\d+\s*,\s*-?\d+\s*,\s*-?\d+\s*\]")

_EVENT_KEYS = frozenset((b"ph", b"ts", b"pid", b"tid", b"dur"))
_BENCH_KEYS = frozenset((b"request_throughput", b"total_input_tokens", b"num_prompts", b"mean_ttft_ms", b"duration"))
_SCHEDULER_KEYS = frozenset((b"max_num_seqs", b"block_size", b"chunk_size", b"max_batch_tkv_limit"))
_STEP_KEYS = frozenset((b"step_type", b"prefilling", b"decoding"))
_KINETO_KEYS = frozenset((b"schemaVersion", b"deviceProperties", b"baseTimeNanoseconds", b"displayTimeUnit"))
_SPEEDSCOPE_MARK = b"speedscope.app/file-format-schema"


class _Key(NamedTuple):
    """A key of a JSON text; `in_list` where it stands in an object of the outermost list."""

    name: bytes
    in_list: bool


def _identify_json(head: _Head) -> InputKind:
    if _NUMBERS.match(head.data):
        return InputKind.MEMORY_TIMELINE
    kind = _kind_by_keys(head)
    if kind is None and head.read_on():
        kind = _kind_by_keys(head)
    return kind or _kind_at_last(head)


def _kind_by_keys(head: _Head) -> InputKind | None:
    """What the keys seen so far say for certain."""
    seen: set[bytes] = set()
    for name, in_list in _keys(head.data):
        seen.add(name)
        if in_list:
            if len(seen & _EVENT_KEYS) >= 2:
                return InputKind.TRACE
        elif name == b"traceEvents":
            return InputKind.TRACE
        elif seen >= {b"shared", b"profiles"} or (name == b"$schema" and _SPEEDSCOPE_MARK in head.data):
            return InputKind.SPEEDSCOPE
        elif seen >= {b"schema_version", b"verdict"}:
            return InputKind.REPORT
        elif len(seen & _BENCH_KEYS) >= 3:
            return InputKind.BENCH_RESULT
        elif len(seen & _SCHEDULER_KEYS) >= 3 or len(seen & _STEP_KEYS) >= 2:
            return InputKind.SCHEDULER_STEPS
    return None


def _kind_at_last(head: _Head) -> InputKind:
    """What is likely where nothing is certain and no more may be read."""
    seen = {key.name for key in _keys(head.data)}
    if len(seen & _KINETO_KEYS) >= 2 or seen >= {b"stackFrames", b"samples"}:
        return InputKind.TRACE
    return InputKind.OTHER_JSON


def _keys(data: bytes) -> Iterator[_Key]:
    """Keys of the outermost object, or of the objects in the outermost list, as far as `data` reaches.

    It is no parser: damaged JSON has keys, too.
    """
    depth = 0
    in_list = data.startswith(b"[")
    wanted = 2 if in_list else 1
    for match in _TOKEN.finditer(data):
        token = match.group()
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
        elif depth == wanted and match["colon"]:
            yield _Key(match["text"], in_list)


# ---- lines of text

_LOG_LINE = re.compile(
    rb"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[?[\w./]{1,200}\.py:\d+\]"
)
_METRIC_TYPE = re.compile(rb"^# TYPE [a-zA-Z_:][\w:]* (?:counter|gauge|histogram|summary|untyped|unknown|info)\b", re.M)
_METRIC = re.compile(rb'[a-zA-Z_:][\w:]*\{(?:[a-zA-Z_]\w*="[^"]*",?\s*)*\} +[-+]?(?:\d|NaN|Inf)')
_AIU_SMI = re.compile(rb"^#MetricFiles?\b|^#\s*ID[ ,]+Date[ ,]+Time[ ,]", re.M)
_CYCLES = re.compile(rb"^~~~~ Ideal/Total Cycles ~~~~|^Name\s+Ideal Cy", re.M)
_TIMELINE = re.compile(rb"type,time ms,percent\r?\n")
_WEIGHT = re.compile(rb"\d+(?:\.\d+)?")


def _identify_lines(head: _Head) -> InputKind | None:
    for pattern, kind in (
        (_METRIC_TYPE, InputKind.METRICS),
        (_AIU_SMI, InputKind.AIU_SMI_LOG),
        (_CYCLES, InputKind.CYCLE_TABLE),
        (_LOG_LINE, InputKind.SERVER_LOG),
    ):
        if pattern.search(head.data):
            return kind
    if _TIMELINE.match(head.data):
        return InputKind.GPU_TIMELINE
    # Stacks may be so deep that a line is longer than what was read.
    if b"\n" not in head.data and b";" in head.data:
        head.read_on()
    return _by_most_lines(head)


def _by_most_lines(head: _Head) -> InputKind | None:
    """Formats that have no mark: what most lines look like."""
    lines = head.data.split(b"\n")
    if not head.whole and len(lines) > 1:
        del lines[-1]
    lines = [line for line in lines if line.strip() and not line.startswith((b"#", b"//"))]
    if sum(bool(_METRIC.match(line)) for line in lines) * 2 > len(lines):
        return InputKind.METRICS
    stacks = [line for line in lines if _is_stack(line)]
    if len(stacks) * 2 > len(lines) and any(b";" in line for line in stacks):
        return InputKind.COLLAPSED_STACKS
    if len(lines) == 1 and not head.whole and lines[0].count(b";") > len(lines[0]) // 1000:
        return InputKind.COLLAPSED_STACKS
    return None


def _is_stack(line: bytes) -> bool:
    words = line.rsplit(None, 1)
    return len(words) == 2 and _WEIGHT.fullmatch(words[1]) is not None
