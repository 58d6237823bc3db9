"""`spyreprof export`, as a user runs it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from builders import EPOCH_OFFSET_NS, MS, SECOND, START_NS, RecordingBuilder, TraceBuilder, decode_name
from command_lines import run
from perfetto_json import assert_perfetto_takes

pytest.importorskip("msgspec")


def traced(*, base_ns: int = EPOCH_OFFSET_NS + START_NS) -> TraceBuilder:
    made = TraceBuilder(base_ns=base_ns)
    for number in range(3):
        made.step(decode_name(requests=2), 2 * MS * number, 2 * MS * number + MS)
        made.operator("aten::mm", 2 * MS * number, 2 * MS * number + MS // 2)
    return made


def events(text: str | bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return found


def recorded(path: Path) -> RecordingBuilder:
    recording = RecordingBuilder(path)
    recording.process()
    recording.steps((START_NS + SECOND + i * MS, START_NS + SECOND + i * MS + MS // 2, decode_name()) for i in range(5))
    trace = traced(base_ns=EPOCH_OFFSET_NS + START_NS + SECOND + 2 * MS).build()
    recording.window(trace, epoch_ns=EPOCH_OFFSET_NS + START_NS + SECOND + MS)
    recording.shard("phases", [{"t0": START_NS + SECOND, "t1": START_NS + SECOND + MS // 4, "n": "schedule"}])
    return recording


def test_a_trace_becomes_a_file_that_perfetto_opens(tmp_path: Path) -> None:
    traced().write(tmp_path / "trace.json")
    done = run("export", "trace.json", "--perfetto", "--out", "out.json", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Wrote out.json.\n")
    text = (tmp_path / "out.json").read_bytes()
    assert_perfetto_takes(text)
    own = [event for event in events(text) if event.get("cat") == "spyreprof"]
    assert [(event["name"], event["args"]["generation_tokens"]) for event in own] == [("decode", 2)] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "trace.json"]


def test_it_goes_to_stdout_and_compressed_into_a_file_of_that_name(tmp_path: Path) -> None:
    traced().write(tmp_path / "trace.json.gz")
    plain = run("export", "trace.json.gz", "--perfetto", cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    for name in ("a.json.gz", "b.json.gz"):
        assert run("export", "trace.json.gz", "--perfetto", "--out", name, cwd=tmp_path).returncode == 0
    packed = (tmp_path / "a.json.gz").read_bytes()
    assert gzip.decompress(packed).decode() == plain.stdout
    assert packed == (tmp_path / "b.json.gz").read_bytes()


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "packed"])
def test_a_recording_shows_its_rows_beside_its_traces_on_one_axis(tmp_path: Path, packed: bool) -> None:
    pytest.importorskip("pandas")
    recording = recorded(tmp_path / "run.spyreprof")
    path = recording.write_packed() if packed else recording.write()
    done = run("export", path.name, "--perfetto", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert_perfetto_takes(done.stdout.encode())
    found = events(done.stdout)
    tracks = {e["args"]["name"]: e["tid"] for e in found if e["name"] == "thread_name"}
    names = {event["tid"]: set() for event in found}
    for event in found:
        if event["ph"] == "X":
            names[event["tid"]].add(event["name"])
    shown = {track: names[tid] for track, tid in tracks.items()}
    assert shown["engine steps in traces of process 4242"] == {"decode"}
    assert shown["step rows of process 4242"] == {"decode"}
    assert shown["profiler windows of process 4242"] == {"profiler window"}
    assert shown["named phases of process 4242"] == {"schedule"}
    # The third step row and the first step of the trace began at the same moment.
    rows = sorted(e["ts"] for e in found if e["tid"] == tracks["step rows of process 4242"] and e["ph"] == "X")
    steps = [e["ts"] for e in found if e["name"] == decode_name(requests=2)]
    assert rows[2] == min(steps)


def test_an_imported_recording_is_exported_from_its_columns(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    traced().write(tmp_path / "rank0.json")
    assert run("import", "rank0.json", "--out", "made.spyreprof", cwd=tmp_path).returncode == 0
    done = run("export", "made.spyreprof", "--perfetto", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert_perfetto_takes(done.stdout.encode())
    assert sum(event["name"] == "aten::mm" for event in events(done.stdout)) == 3


def test_a_trace_that_cannot_be_read_costs_itself_and_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    recording = recorded(tmp_path / "run.spyreprof")
    recording.window(b"nothing", n=2)
    recording.write()
    done = run("export", "run.spyreprof", "--perfetto", cwd=tmp_path)
    assert done.returncode == 0
    assert "profiler window 2" in done.stderr
    assert any(event["name"] == "aten::mm" for event in events(done.stdout))


def test_one_event_is_printed_as_its_file_has_it(tmp_path: Path) -> None:
    told = '{"ph": "X", "name": "a", "ts": 5.001, "dur": 1e0, "pid": 1, "tid": 1, "args": {"deep": [1, {"x": 2}]}}'
    (tmp_path / "trace.json").write_text(f'{{"traceEvents": [{{"ph": "M", "name": "x", "pid": 1}}, {told}]}}')
    done = run("export", "trace.json", "--event", "1", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, told + "\n", "")


def test_nothing_in_an_event_reaches_the_terminal_as_a_command(tmp_path: Path) -> None:
    name = "\x9b31m\u202ered\x7f"
    told = json.dumps({"ph": "X", "name": name, "ts": 5, "dur": 1, "pid": 1, "tid": 1}, ensure_ascii=False)
    (tmp_path / "trace.json").write_text(f"[{told}]", encoding="utf-8")
    done = run("export", "trace.json", "--event", "0", cwd=tmp_path, env={"PYTHONIOENCODING": "utf-8"})
    assert json.loads(done.stdout)["name"] == name
    assert done.stdout.strip().isprintable()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("trace.json",), "Exactly one thing is exported at a time."),
        (("trace.json", "--perfetto", "--event", "1"), "Exactly one thing is exported at a time."),
        (("trace.json", "--event", "99"), "no readable event 99"),
        (("absent.json", "--perfetto"), "There is no absent.json."),
        (("notes.txt", "--perfetto"), "notes.txt is text of an unknown kind"),
        ((".", "--event", "1"), "events are numbered within one trace file"),
        (("trace.json", "--perfetto", "--out", "nowhere/out.json"), "nowhere/out.json cannot be written"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    traced().write(tmp_path / "trace.json")
    (tmp_path / "notes.txt").write_text("hello\n")
    done = run("export", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_there_stays_where_the_export_fails(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("before")
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    done = run("export", "empty.json", "--perfetto", "--out", "out.json", cwd=tmp_path)
    assert done.returncode == 2
    assert (tmp_path / "out.json").read_text() == "before"


def test_help_says_that_names_are_not_redacted(tmp_path: Path) -> None:
    assert "not redacted" in " ".join(run("export", "--help", cwd=tmp_path).stdout.split())


def test_an_event_is_the_same_before_and_after_a_report_on_its_file(tmp_path: Path) -> None:
    traced().write(tmp_path / "trace.json")
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    before = run("export", "trace.json", "--event", "1", cwd=tmp_path, env=own)
    assert run("report", "trace.json", cwd=tmp_path, env=own).returncode == 0
    [facts] = (tmp_path / "cache").rglob("part-0/facts.json")
    after = run("export", "trace.json", "--event", "1", cwd=tmp_path, env=own)
    assert (after.returncode, after.stdout) == (before.returncode, before.stdout) == (0, before.stdout)
    # what the report kept is what is looked at: where that is wrong, so is the event
    told = json.loads(facts.read_text())
    facts.write_text(json.dumps({**told, "windows": [[1, offset] for _, offset in told["windows"]]}))
    assert run("export", "trace.json", "--event", "1", cwd=tmp_path, env=own).stdout != before.stdout
