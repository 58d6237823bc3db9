"""What a file is, told from its content."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from spyreprof import inputs
from spyreprof.errors import UserError
from spyreprof.inputs import InputKind, identify, not_read

EVENT = {"ph": "X", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2}
TRACE = json.dumps({"schemaVersion": 1, "traceEvents": [EVENT]}).encode()
LOG = b"(APIServer pid=7) INFO 11-30 15:45:45 [api_utils.py:286] non-default args: {}\n"
METRICS = b"# HELP a:b_total Things.\n# TYPE a:b_total counter\na:b_total 3.0\n"
SPEEDSCOPE = {"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": [], "shared": {}}
BENCH = {"date": "x", "num_prompts": 4, "duration": 1.0, "total_input_tokens": 8, "request_throughput": 4.0}
SETTINGS = {"max_model_len": 512, "max_num_seqs": 4, "block_size": 64, "chunk_size": 128}
STEP = {"step_type": "prefill", "waiting": [], "prefilling": {"id": "0"}, "decoding": []}
CYCLES = b"[DeepRT] == BEGIN ==\n~~~~ Ideal/Total Cycles ~~~~\nName        Ideal Cy.\nmm   12\nTotal  12\n"
CARDS = b"#MetricFiles\n# 0 /tmp/metrics\n#ID Date      Time     hostcpu\n  0 20250617  21:14:01   276.0\n"
CARDS_CSV = b"#MetricFile,0,/tmp/metrics\n#ID,Date,Time,hostcpu\n0,20250617,21:14:01,276.0\n"
LABELLED = b'vllm:requests{model="m",le="0.5"} 3\nvllm:requests{model="m",le="+Inf"} NaN\nvllm:x{} 1e3\n'

CASES: dict[str, tuple[bytes, InputKind]] = {
    "object trace": (TRACE, InputKind.TRACE),
    "list trace": (json.dumps([EVENT]).encode(), InputKind.TRACE),
    "list trace, cut": (json.dumps([EVENT, EVENT])[:-20].encode(), InputKind.TRACE),
    "trace after blanks": (b"\n\n   " + TRACE, InputKind.TRACE),
    "trace, cut before its first event": (b'{"schemaVersion": 1, "deviceProperties": [{"na', InputKind.TRACE),
    "trace with a damaged text": (TRACE.replace(b'"k"', b'"a\\q \x01 \xff"'), InputKind.TRACE),
    "trace of samples alone": (b'{"samples": [], "stackFrames": {"1": {"name": "f"}}}', InputKind.TRACE),
    "utf-16 trace": (TRACE.decode().encode("utf-16"), InputKind.TRACE),
    "trace with a byte order mark": (b"\xef\xbb\xbf" + TRACE, InputKind.TRACE),
    "gzipped trace": (gzip.compress(TRACE), InputKind.TRACE),
    "gzipped trace, cut": (gzip.compress(TRACE)[:-9], InputKind.TRACE),
    "speedscope": (json.dumps(SPEEDSCOPE).encode(), InputKind.SPEEDSCOPE),
    "speedscope without its schema": (b'{"profiles": [], "shared": {"frames": []}}', InputKind.SPEEDSCOPE),
    "stacks": (b"# made by hand\nmain;step 3\nmain;wait 4.5\nno weight\n", InputKind.COLLAPSED_STACKS),
    "utf-16 stacks": ("main;step 3\nmain;wait 4\n".encode("utf-16"), InputKind.COLLAPSED_STACKS),
    "metrics": (METRICS, InputKind.METRICS),
    "metrics without comments": (LABELLED, InputKind.METRICS),
    "log": (b"Triton is installed.\n" + LOG, InputKind.SERVER_LOG),
    "log of earlier releases": (b"INFO 08-06 10:28:15 llm_engine.py:226] Initializing\n", InputKind.SERVER_LOG),
    "coloured log": (b"\x1b[1;36m(EngineCore pid=7)\x1b[0;0m " + LOG, InputKind.SERVER_LOG),
    "log that begins with a bracket": (b"[1] 4711\n" + LOG, InputKind.SERVER_LOG),
    "bench result": (json.dumps(BENCH).encode(), InputKind.BENCH_RESULT),
    "gpu timeline": (b"type,time ms,percent\nbusy_time,0.3,7.9\n", InputKind.GPU_TIMELINE),
    "aiu-smi": (CARDS, InputKind.AIU_SMI_LOG),
    "aiu-smi as csv": (CARDS_CSV, InputKind.AIU_SMI_LOG),
    "cycles": (CYCLES, InputKind.CYCLE_TABLE),
    "scheduler steps": ("\n".join(map(json.dumps, (SETTINGS, STEP))).encode(), InputKind.SCHEDULER_STEPS),
    "scheduler steps without settings": (json.dumps(STEP).encode(), InputKind.SCHEDULER_STEPS),
    "memory timeline": (b"[[-1, 1, 37888, 7], [-1, 1, 512, 7]]", InputKind.MEMORY_TIMELINE),
    "report": (b'{"schema_version": 3, "verdict": {"primary": "host_bound"}}', InputKind.REPORT),
    "object": (b'{"name": "x", "license": "y"}', InputKind.OTHER_JSON),
    "empty object": (b"{}", InputKind.OTHER_JSON),
    "empty list": (b"[]", InputKind.OTHER_JSON),
    "list of texts": (b'["a", "b"]', InputKind.OTHER_JSON),
    "keys that only values have": (b'{"note": "traceEvents", "x": {"traceEvents": []}}', InputKind.OTHER_JSON),
    "prose": (b"Dear all,\n\nplease find attached the trace; it has 3\nsteps.\n", InputKind.OTHER_TEXT),
    "requirements": (b"aiohttp==3.14.5\nyarl==1.25.1\n", InputKind.OTHER_TEXT),
    "words and numbers": (b"apples 3\npears 4\n", InputKind.OTHER_TEXT),
    "program": (b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 8, InputKind.OTHER_BINARY),
    "gzipped program": (gzip.compress(bytes(range(256)) * 8), InputKind.OTHER_BINARY),
    "zstandard": (b"\x28\xb5\x2f\xfd\x04\x00" + bytes(40), InputKind.OTHER_COMPRESSION),
    "bzip2": (b"BZh91AY&SY" + bytes(40), InputKind.OTHER_COMPRESSION),
    "nothing": (b"", InputKind.EMPTY),
    "blanks": (b" \r\n\n", InputKind.EMPTY),
    "gzipped nothing": (gzip.compress(b""), InputKind.EMPTY),
    "gzip that is cut at its start": (b"\x1f\x8bxxxx", InputKind.DAMAGED),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    # a name that promises something else
    return tmp_path / "report.csv.gz"


@pytest.mark.parametrize(("data", "kind"), CASES.values(), ids=CASES)
def test_files_are_told_by_their_content(path: Path, data: bytes, kind: InputKind) -> None:
    path.write_bytes(data)
    assert identify(path) is kind


def test_every_kind_of_file_is_among_these_tests() -> None:
    of_folders_and_zips = {
        InputKind.RECORDING,
        InputKind.PACKED_RECORDING,
        InputKind.OTHER_FOLDER,
        InputKind.OTHER_ZIP,
    }
    assert {kind for _, kind in CASES.values()} | of_folders_and_zips == set(InputKind)


def test_a_folder_is_a_recording_when_it_has_a_manifest(tmp_path: Path) -> None:
    assert identify(tmp_path) is InputKind.OTHER_FOLDER
    (tmp_path / "manifest.json").write_text("{}")
    assert identify(tmp_path) is InputKind.RECORDING


def test_a_zip_file_is_a_recording_when_it_lists_a_manifest(path: Path) -> None:
    for name, kind in (("x/notes.txt", InputKind.OTHER_ZIP), ("x/manifest.json", InputKind.PACKED_RECORDING)):
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr(name, "{}")
        assert identify(path) is kind


def padded(**fields: Any) -> bytes:
    """A JSON object whose last fields stand behind a list of some 200 kB."""
    return json.dumps({"INFO": ["x" * 100] * 2000, **fields}).encode()


def test_what_a_long_list_hides_is_found_behind_it(path: Path) -> None:
    path.write_bytes(padded(traceEvents=[EVENT]))
    assert identify(path) is InputKind.TRACE
    path.write_bytes(padded(other=1))
    assert identify(path) is InputKind.OTHER_JSON


def test_stacks_so_deep_that_a_line_is_longer_than_the_head_are_stacks(path: Path) -> None:
    path.write_bytes(b"function;" * 100_000 + b"last 3\nmain 4\n")
    assert identify(path) is InputKind.COLLAPSED_STACKS
    path.write_bytes(b"function;" * 2_000_000)
    assert identify(path) is InputKind.COLLAPSED_STACKS


def test_no_more_than_a_bounded_beginning_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_MOST_BYTES", 2**18)
    # a file with a hole: reading all of it would take minutes and its size in memory
    with path.open("wb") as file:
        file.write(b'{"a": [' + b"1, " * 100_000)
        file.truncate(2**40)
    assert identify(path) is InputKind.OTHER_JSON
    path.write_bytes(b" " * 2**20 + TRACE)
    assert identify(path) is InputKind.OTHER_TEXT


@pytest.mark.parametrize("data", [b'{"a": "' + b'\\"' * 2**20, b"[" * 2**20, b'{"' + b"a;" * 2**20, b"1 " * 2**20])
def test_text_made_to_be_hard_to_search_is_searched_once(path: Path, data: bytes) -> None:
    # a search that begins anew at each sign would not end within the time of a test
    path.write_bytes(data)
    assert not identify(path).is_read


def test_what_is_no_file_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no"):
        identify(tmp_path / "absent")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="neither a file nor a folder"):
        identify(pipe)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_what_may_not_be_read_is_refused_in_words(path: Path) -> None:
    path.write_bytes(TRACE)
    path.chmod(0)
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        identify(path)


@pytest.mark.parametrize("kind", [kind for kind in InputKind if not kind.is_read])
def test_what_is_not_read_is_named_and_a_way_on_is_shown(kind: InputKind) -> None:
    error = not_read("x.txt", kind)
    assert error.problem.startswith(f"x.txt is {kind.value}")
    assert error.problem.endswith(".")
    assert error.remedy.endswith(".")


def test_only_what_has_a_name_of_its_own_is_said_to_be_read_later() -> None:
    assert not_read("x", InputKind.AIU_SMI_LOG).problem == "x is an aiu-smi log, which is not read yet."
    assert not_read("x", InputKind.OTHER_TEXT).problem == "x is text of an unknown kind."
