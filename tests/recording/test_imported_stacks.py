"""Files of call stacks become recordings that say what their weights are, and nothing that stacks cannot tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import MS, TraceBuilder, decode_name
from hypothesis import given
from hypothesis import strategies as st

from spyreprof import registry
from spyreprof.errors import UserError
from spyreprof.recording.imported import import_files
from spyreprof.recording.imported_stacks import (
    MAX_FILE_BYTES,
    MAX_PROFILES,
    NO_FILES,
    NOT_TIME,
    StackFileSummary,
    StackProfileSummary,
    function_and_file,
    stacks_name,
    summarise_stacks,
)
from spyreprof.recording.pack import pack
from spyreprof.recording.store import Recording, open_recording
from spyreprof.report.redact import Redactor
from spyreprof.stacks.reader import read_bytes

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
SITE = "/opt/venv/lib/python3.11/site-packages"


def speedscope(frames: list[Any], *profiles: dict[str, Any]) -> bytes:
    named = [{"name": one} if isinstance(one, str) else {"name": one[0], "file": one[1]} for one in frames]
    return json.dumps({"$schema": SCHEMA, "shared": {"frames": named}, "profiles": profiles}).encode()


def sampled(samples: list[list[int]], weights: list[float], unit: str = "seconds", name: str = "MainThread") -> Any:
    return {"type": "sampled", "name": name, "unit": unit, "samples": samples, "weights": weights}


def file_of(data: bytes) -> StackFileSummary:
    return summarise_stacks(read_bytes(data, "f"), "speedscope", "f")


def profile_of(data: bytes) -> StackProfileSummary:
    [found] = file_of(data).profiles
    return found


def imported(tmp_path: Path, *paths: Path) -> Recording:
    import_files(paths, tmp_path / "made.spyreprof")
    return open_recording(tmp_path / "made.spyreprof")


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def chrome(*, events: bool, samples: int = 2) -> dict[str, Any]:
    trace = TraceBuilder()
    if events:
        trace.step(decode_name(requests=2), 0, MS)
    frames = {"1": {"name": "main"}, "2": {"name": "step", "parent": "1"}}
    return {
        **trace.build(),
        "samples": [{"pid": 4, "tid": 5, "ts": 1, "sf": 2, "weight": "3"}] * samples,
        "stackFrames": frames,
    }


def test_self_and_total_weight_are_by_function_with_its_lines_together() -> None:
    stacks = b"main (a.py:1);step (b.py:4) 3\nmain (a.py:1);step (b.py:9) 2\nmain (a.py:7) 5\n"
    found = profile_of(stacks)
    assert [(one.function, one.file, one.self_weight, one.total_weight) for one in found.top] == [
        ("main", "a.py", 5, 10),
        ("step", "b.py", 5, 5),
    ]
    assert (found.weight, found.samples_kept, found.functions) == (10, 3, 2)


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        ("nanoseconds", "ns"),
        ("microseconds", "us"),
        ("milliseconds", "ms"),
        ("seconds", "s"),
        ("bytes", "bytes"),
        ("none", "samples"),
        ("fortnights", "samples"),
    ],
)
def test_a_weight_keeps_the_unit_of_its_file_and_is_samples_where_that_tells_none(unit: str, said: str) -> None:
    found = profile_of(speedscope(["main"], sampled([[0]], [7], unit)))
    assert (found.unit, found.weight) == (said, 7)


def test_collapsed_stacks_are_samples_and_no_time() -> None:
    assert profile_of(b"main;step 3\n").unit == "samples"


def test_what_ends_in_a_function_that_waits_is_waiting() -> None:
    frames = [("forward", f"{SITE}/torch/nn/modules/module.py"), ("wait", "/usr/lib/python3.11/threading.py")]
    found = profile_of(speedscope(frames, sampled([[0], [0, 1], [1, 0]], [5, 2, 1])))
    assert (found.waiting_weight, found.waiting_reason) == (2, None)
    assert {(one.function, one.file, one.waits) for one in found.top} == {
        ("forward", "torch/nn/modules/module.py", False),
        ("wait", "<stdlib>/threading.py", True),
    }


def test_without_files_of_functions_waiting_is_unknown_and_not_zero() -> None:
    found = profile_of(b"main;pthread_cond_wait 3\n")
    assert (found.waiting_weight, found.waiting_reason) == (None, NO_FILES)
    assert [one.waits for one in found.top] == [None, None]


def test_bytes_do_not_wait() -> None:
    frames = [("wait", "/usr/lib/python3.11/threading.py")]
    found = profile_of(speedscope(frames, sampled([[0]], [5], "bytes")))
    assert (found.waiting_weight, found.waiting_reason) == (None, NOT_TIME)


@pytest.mark.parametrize(
    ("frame", "place"),
    [
        ("forward (torch/nn/modules/module.py:1501)", ("forward", "torch/nn/modules/module.py")),
        ("torch/nn/modules/module.py(1501): forward", ("forward", "torch/nn/modules/module.py")),
        (f"{SITE}/torch/_ops.py(12): __call__", ("__call__", "torch/_ops.py")),
        ("<lambda> (C:\\app\\serve.py:3)", ("<lambda>", "C:/app/serve.py")),
        ("get (/usr/lib/python3.10/queue.py:171)", ("get", "<stdlib>/queue.py")),
        ("operator() (gemm.cpp)", ("operator()", "gemm.cpp")),
        ("aten::mm", ("aten::mm", None)),
        ("step:17", ("step", None)),
        ("aten::mm (", ("aten::mm (", None)),
    ],
)
def test_a_frame_is_a_function_and_a_file_in_every_spelling(frame: str, place: tuple[str, str | None]) -> None:
    assert function_and_file(frame) == place


def test_a_file_of_the_user_is_not_taken_for_the_standard_library_beyond_the_waits_we_know() -> None:
    assert function_and_file("wait (threading.py:302)") == ("wait", "<stdlib>/threading.py")
    # a class may be the user's
    assert function_and_file("SecretPlan.get (queue.py:1)") == ("get", "<stdlib>/queue.py")
    assert function_and_file("secret_plan (queue.py:1)") == ("secret_plan", "queue.py")
    assert function_and_file("sched_yield (secret.py:1)") == ("sched_yield", "secret.py")


def test_a_name_with_line_breaks_is_one_function() -> None:
    found = profile_of(speedscope(["a\nb", ("b", "a\n"), ("a\nb", "")], sampled([[0], [1], [2]], [1, 2, 3])))
    assert sum(one.self_weight for one in found.top) == 6


@given(
    st.lists(st.tuples(st.lists(st.text(max_size=9), min_size=1, max_size=4), st.integers(0, 9)), min_size=1),
    st.sampled_from(["none", "seconds"]),
)
def test_the_self_weights_of_any_stacks_add_up_and_nothing_weighs_more_than_all(
    stacks: list[tuple[list[str], int]], unit: str
) -> None:
    names = sorted({name for stack, _ in stacks for name in stack})
    samples = [[names.index(name) for name in stack] for stack, _ in stacks]
    weights = [weight for _, weight in stacks]
    data = speedscope(list(names), sampled(samples, list(weights), unit))
    if not sum(weights):
        with pytest.raises(UserError):
            file_of(data)
        return
    found = profile_of(data)
    assert found.weight == sum(weights)
    assert sum(one.self_weight for one in found.top) <= found.weight
    if found.functions <= 15:
        assert sum(one.self_weight for one in found.top) == found.weight
    assert all(one.self_weight <= one.total_weight <= found.weight for one in found.top)


def test_a_profile_without_weight_is_counted_and_not_listed() -> None:
    data = speedscope(["main"], sampled([[0]], [1]), sampled([[0]], [0]), sampled([], []), sampled([[7]], [1]))
    found = file_of(data)
    assert (found.profiles_read, found.profiles_without_weight, found.profiles_total) == (4, 3, 1)
    assert (found.samples_read, found.samples_kept) == (3, 2)
    assert found.dropped == {"a frame that the file does not define": 1}


def test_stacks_without_any_weight_are_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="have no weight"):
        file_of(speedscope(["main"], sampled([[0]], [0])))


def test_profiles_with_a_unit_come_before_those_without_and_heavy_ones_first() -> None:
    data = speedscope(
        ["main"],
        sampled([[0]], [99], "none", "c"),
        sampled([[0]], [1], "seconds", "b"),
        sampled([[0]], [2], "seconds", "a"),
    )
    assert [one.name for one in file_of(data).profiles] == ["a", "b", "c"]


def test_a_summary_of_the_longest_names_can_be_read_back(tmp_path: Path) -> None:
    names = [f"{number}{chr(1) * 5000}" for number in range(60)]
    profiles = [sampled([[number] for number in range(60)], [1.5] * 60, name="\x01" * 999) for _ in range(MAX_PROFILES)]
    data = speedscope([(name, name) for name in names], *profiles, *profiles)
    assert len(msgspec.json.encode(file_of(data))) <= MAX_FILE_BYTES
    [found] = imported(tmp_path, write(tmp_path / "s.json", data)).stack_files
    assert (len(found.profiles), found.profiles_total) == (MAX_PROFILES, 2 * MAX_PROFILES)


def test_stacks_alone_are_a_recording_without_a_verdict_that_says_what_is_missing(tmp_path: Path) -> None:
    recording = imported(tmp_path, write(tmp_path / "s.txt", b"main;step 3\nmain 1\n"))
    assert (recording.manifest.started_ns, recording.manifest.ended_ns) == (None, None)
    assert recording.manifest.finished
    assert not any("did not finish" in note for note in recording.quality.notes)
    diagnosis = registry.diagnose(recording.analysis_inputs())
    assert (diagnosis.verdict.primary, diagnosis.verdict.confidence) == ("undetermined", None)
    assert "--py-spy" in diagnosis.verdict.missing[0].obtain
    assert [one.topic for one in diagnosis.not_judged] == [
        "what binds the engine",
        "time in functions",
        "waiting in functions",
    ]


def test_stacks_with_units_and_files_leave_only_the_verdict_open(tmp_path: Path) -> None:
    data = speedscope([("main", "/app/serve.py")], sampled([[0]], [1]))
    recording = imported(tmp_path, write(tmp_path / "s.json", data))
    [only] = registry.diagnose(recording.analysis_inputs()).not_judged
    assert only.topic == "what binds the engine"


def test_stacks_and_traces_go_together(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(chrome(events=True, samples=0)))
    recording = imported(tmp_path, write(tmp_path / "s.txt", b"main;step 3\n"), trace)
    assert (len(recording.trace_summaries), len(recording.stack_files), len(recording.steps)) == (1, 1, 1)
    assert "This recording was made of traces and call stacks." in recording.manifest.notes
    assert "under a profiler" in registry.diagnose(recording.analysis_inputs()).verdict.reason
    assert [one.kind for one in recording.manifest.imported or ()] == ["collapsed_stacks", "trace"]


def test_samples_beside_the_events_of_a_trace_are_read_with_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(chrome(events=True)))
    recording = imported(tmp_path, trace)
    assert len(recording.steps) == 1
    [found] = recording.stack_files
    assert (found.kind, found.profiles[0].name, found.profiles[0].weight) == ("trace", "process 4, thread 5", 6)


def test_samples_beside_no_timed_event_are_enough(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(chrome(events=False)))
    recording = imported(tmp_path, trace)
    assert (recording.trace_summaries, len(recording.stack_files)) == ((), 1)
    assert any("no timed events; the stacks are used" in note for note in recording.manifest.notes)


def test_samples_too_many_to_be_kept_beside_the_events_are_read_all_the_same(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(chrome(events=True, samples=80_000)))
    assert trace.stat().st_size > 2**22
    [found] = imported(tmp_path, trace).stack_files
    assert found.samples_kept == 80_000


def test_a_trace_whose_samples_are_null_has_none(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(chrome(events=True) | {"samples": None}))
    recording = imported(tmp_path, trace)
    assert recording.stack_files == ()
    assert not any("call stacks" in note for note in recording.manifest.notes)


def test_samples_that_cannot_be_used_are_named_and_the_trace_is_read(tmp_path: Path) -> None:
    content = chrome(events=True)
    content["stackFrames"] = {}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(content))
    recording = imported(tmp_path, trace)
    assert (len(recording.steps), recording.stack_files) == (1, ())
    assert any("cannot be used, left out" in note for note in recording.manifest.notes)


def test_a_file_of_stacks_that_cannot_be_read_costs_itself_alone(tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.json", speedscope(["main"], sampled([[0]], [0])))
    good = write(tmp_path / "good.txt", b"main;step 3\n")
    recording = imported(tmp_path, bad, good, good)
    assert len(recording.stack_files) == 1
    assert "Files of stacks that were given and cannot be read, left out: 1." in recording.manifest.notes
    assert "A file of stacks was given twice and is counted once." in recording.manifest.notes


def test_progress_ends_with_all_bytes_of_all_files(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.txt", b"main;step 3\n"), write(tmp_path / "b.txt", b"main;step 44\n")
    told: list[tuple[int, int]] = []
    import_files([first, second], tmp_path / "made", progress=lambda done, total: told.append((done, total)))
    total = first.stat().st_size + second.stat().st_size
    assert told[-1] == (total, total)


def test_a_packed_import_of_stacks_says_the_same(tmp_path: Path) -> None:
    recording = imported(tmp_path, write(tmp_path / "s.txt", b"main;step 3\n"))
    packed = open_recording(pack(recording.path, tmp_path / "packed.spyreprof.zip"))
    assert packed.stack_files == recording.stack_files


@pytest.mark.parametrize("damage", [b"{}", b"[1", b'{"profiles": 3}', b"\xff\xfe"])
def test_a_damaged_summary_of_stacks_is_counted_and_left_out(tmp_path: Path, damage: bytes) -> None:
    recording = imported(tmp_path, write(tmp_path / "s.txt", b"main;step 3\n"))
    (recording.path / stacks_name(1)).write_bytes(damage)
    again = open_recording(recording.path)
    assert again.stack_files == ()
    assert any("imported stacks that are damaged, left out: 1" in note for note in again.quality.notes)


@pytest.mark.parametrize(
    "changes", [{"weight": 0}, {"weight": -3}, {"weight": 1}, {"waiting_weight": 9}, {"waiting_weight": -1}]
)
def test_a_summary_whose_parts_exceed_the_whole_is_damaged(tmp_path: Path, changes: dict[str, int]) -> None:
    recording = imported(tmp_path, write(tmp_path / "s.txt", b"main;step 3\n"))
    place = recording.path / stacks_name(1)
    content = json.loads(place.read_bytes())
    content["profiles"][0].update(changes)
    place.write_text(json.dumps(content))
    assert open_recording(recording.path).stack_files == ()


def test_every_sentence_about_stacks_may_stand_in_a_report(tmp_path: Path) -> None:
    evented = {
        "type": "evented",
        "unit": "none",
        "endValue": 9,
        "events": [{"type": kind, "frame": frame, "at": at} for kind, frame, at in EVENTS],
    }
    found = file_of(speedscope(["main", "step"], evented, sampled([[0], [], [1]], [1, 1])))
    recording = imported(tmp_path, write(tmp_path / "s.txt", b"main;step 3\nmain 1\nno weight\n"))
    said = [*(sentence for one in found.profiles for sentence in one.quality), NO_FILES, NOT_TIME]
    said += [*found.dropped, *recording.manifest.notes, *recording.stack_files[0].profiles[0].quality]
    assert len(said) > 9
    for sentence in said:
        assert Redactor().text("sentence", sentence) == sentence


EVENTS = [("O", 0, 1), ("O", 1, 0), ("C", 0, 2), ("C", 1, 3), ("C", 1, 4), ("O", 0, 5), ("X", 0, 6), ("O", 7, 6)]
