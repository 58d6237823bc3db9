"""Opening a recording: what is refused, in which words, and what is read all the same."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import zipfile
from pathlib import Path

import pytest
from builders import SECOND, START_NS, RecordingBuilder, decode_name
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.errors import EXIT_WRONG_USE, UserError
from spyreprof.recording import source as source_module
from spyreprof.recording.store import open_recording


@pytest.fixture
def builder(tmp_path: Path) -> RecordingBuilder:
    return RecordingBuilder(tmp_path / "run.spyreprof").process().steps([(START_NS, START_NS + 5, decode_name())])


def refusal(path: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        open_recording(path)
    assert caught.value.exit_code == EXIT_WRONG_USE
    assert caught.value.remedy
    assert "\n" not in caught.value.problem
    return caught.value


def test_a_path_where_nothing_is_says_how_to_make_a_recording(tmp_path: Path) -> None:
    error = refusal(tmp_path / "nothing.spyreprof")
    assert "no recording" in error.problem
    assert "spyreprof record" in error.remedy


def test_a_folder_without_a_manifest_is_not_a_recording(tmp_path: Path) -> None:
    assert "manifest.json" in refusal(tmp_path).problem


def test_a_manifest_of_another_product_is_not_a_recording(builder: RecordingBuilder) -> None:
    builder.files["manifest.json"] = b'{"name": "a browser extension", "manifest_version": 3}'
    assert "not a spyreprof recording" in refusal(builder.write()).problem


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"schema_version": 1, "notes": "not a list"}', b"\xff\xfe\x00", b"[" * 100_000, b'{"a": 1} trailing'],
)
def test_a_damaged_manifest_is_refused(builder: RecordingBuilder, content: bytes) -> None:
    builder.files["manifest.json"] = content
    assert "damaged" in refusal(builder.write()).problem


@pytest.mark.parametrize("time_ns", [10**30, -1])
def test_a_manifest_with_a_time_that_no_clock_shows_is_damaged(builder: RecordingBuilder, time_ns: int) -> None:
    builder.manifest["ended_ns"] = time_ns
    assert "damaged" in refusal(builder.write()).problem


def test_a_newer_schema_says_which_versions_and_to_upgrade(builder: RecordingBuilder) -> None:
    builder.manifest["schema_version"] = 7
    builder.manifest["notes"] = {"a": "shape that this version does not know"}
    error = refusal(builder.write())
    assert "newer spyreprof (schema 7, this one reads up to 1)" in error.problem
    assert "Upgrade" in error.remedy


def test_a_manifest_with_nothing_but_its_version_opens_with_everything_unknown(builder: RecordingBuilder) -> None:
    builder.manifest = {"schema_version": 1, "a key of the future": [1]}
    recording = open_recording(builder.write())
    assert recording.manifest.ended_ns is None
    assert recording.manifest.exit is None
    assert recording.manifest.host.cpu_count is None
    assert len(recording.steps) == 1


def test_a_text_file_is_not_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert "neither a recording folder nor a packed recording" in refusal(path).problem


def test_an_empty_file_is_not_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "run.spyreprof.zip"
    path.touch()
    assert "empty" in refusal(path).problem


@pytest.mark.parametrize("prefix", ["", "run.spyreprof/"])
def test_a_packed_recording_reads_as_its_folder_does(builder: RecordingBuilder, prefix: str) -> None:
    builder.metrics([(START_NS, ["a 1"])]).bench(input_lens=[3], output_lens=[1], ttfts=[0.5], itls=[[]])
    folder, packed = open_recording(builder.write()), open_recording(builder.write_packed(prefix=prefix))
    for table in ("steps", "requests", "counters", "usage"):
        assert getattr(folder, table).equals(getattr(packed, table)), table
    assert folder.manifest == packed.manifest


def test_a_truncated_zip_is_refused(builder: RecordingBuilder) -> None:
    packed = builder.write_packed()
    content = packed.read_bytes()
    packed.write_bytes(content[: len(content) // 2])
    refusal(packed)


def test_a_zip_without_a_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "manifest.json" in refusal(path).problem


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "shards/../../outside", "..\\outside", "C:\\outside"])
def test_a_zip_whose_names_point_outside_is_refused(builder: RecordingBuilder, name: str) -> None:
    packed = builder.write_packed()
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr(name, "x")
    assert "outside" in refusal(packed).problem


def test_a_zip_with_a_link_is_refused(builder: RecordingBuilder) -> None:
    packed = builder.write_packed()
    link = zipfile.ZipInfo("run.spyreprof/shards/steps-1-a.jsonl")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    assert "link" in refusal(packed).problem


def test_a_zip_bomb_is_refused_before_it_is_unpacked(builder: RecordingBuilder) -> None:
    packed = builder.write_packed()
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run.spyreprof/shards/steps-2-b.jsonl", b"0" * (2 * 2**20))
    assert "expands" in refusal(packed).problem


def test_a_zip_of_too_many_files_is_refused(builder: RecordingBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "MAX_MEMBERS", 2)
    assert "files" in refusal(builder.write_packed()).problem


def test_a_zip_that_would_fill_the_disk_is_refused(builder: RecordingBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "MAX_TOTAL_BYTES", 100)
    assert "unpack" in refusal(builder.write_packed()).problem


def test_a_zip_with_two_files_of_one_name_is_refused(builder: RecordingBuilder) -> None:
    packed = builder.write_packed()
    with zipfile.ZipFile(packed, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("run.spyreprof/manifest.json", json.dumps({"schema_version": 1}))
    assert "two files" in refusal(packed).problem


def test_a_member_damaged_inside_the_zip_costs_itself_only(builder: RecordingBuilder) -> None:
    builder.shard("usage", [json.dumps({"t": i, "pid": 1, "cpu_ns": i}) + "\n" for i in range(1000)], "launcher")
    packed = builder.write_packed()
    with zipfile.ZipFile(packed) as archive:
        info = archive.getinfo("run.spyreprof/shards/usage-launcher.jsonl")
        at = info.header_offset + 30 + len(info.filename) + info.compress_size // 2
    content = bytearray(packed.read_bytes())
    content[at : at + 8] = b"\x00" * 8
    packed.write_bytes(bytes(content))
    recording = open_recording(packed)
    assert len(recording.steps) == 1
    assert len(recording.usage) < 1000
    assert recording.quality.counts["unreadable_files"] == 1


@given(data=st.data())
def test_no_damage_to_a_packed_recording_ends_in_a_traceback(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        builder = RecordingBuilder(Path(folder) / "run.spyreprof").process()
        builder.steps([(START_NS + i, START_NS + i + 5, decode_name(requests=i)) for i in range(50)])
        packed = builder.metrics([(START_NS, ["a 1"])]).bench(input_lens=[1]).calibration().write_packed()
        content = bytearray(packed.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            # Most of what can be damaged to effect is the directory at the end.
            back = data.draw(st.one_of(st.integers(1, 800), st.integers(1, len(content))))
            content[-min(back, len(content))] = data.draw(st.integers(0, 255))
        packed.write_bytes(bytes(content))
        with contextlib.suppress(UserError):
            recording = open_recording(packed)
            recording.analysis_inputs()
            assert isinstance(recording.quality.counts, dict)


def test_links_in_a_folder_are_neither_followed_nor_counted_as_files(builder: RecordingBuilder, tmp_path: Path) -> None:
    path = builder.write()
    outside = tmp_path / "outside.jsonl"
    outside.write_text(json.dumps({"t0": 1, "t1": 2, "n": decode_name()}) + "\n")
    (path / "shards" / "steps-9-c.jsonl").symlink_to(outside)
    os.mkfifo(path / "shards" / "steps-10-d.jsonl")
    recording = open_recording(path)
    assert len(recording.steps) == 1
    assert recording.quality.counts["entries_left_out"] == 2


def test_a_link_to_a_recording_folder_opens(builder: RecordingBuilder, tmp_path: Path) -> None:
    link = tmp_path / "latest.spyreprof"
    link.symlink_to(builder.write())
    assert len(open_recording(link).steps) == 1


def test_an_unfinished_recording_is_readable_and_says_so(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "cut.spyreprof", end_ns=None).process(end_ns=None)
    builder.steps([(START_NS, START_NS + 5 * SECOND, decode_name())])
    builder.shard("steps", [b'{"t0":10500000'])
    recording = open_recording(builder.write())
    inputs = recording.analysis_inputs()
    assert len(recording.steps) == 1
    assert not inputs.finished
    assert inputs.recording_end_ns == START_NS + 10 * SECOND  # the last clock anchor
    said = " ".join(recording.quality.notes)
    assert "did not finish" in said
    assert "4242" in said
    assert recording.quality.counts["cut_lines"] == 1
