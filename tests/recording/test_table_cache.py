"""Tables are kept as Parquet beside the shards; a cache can be absent, stale, damaged or hostile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import RecordingBuilder, decode_name, prefill_name

from spyreprof.recording.store import open_recording


@pytest.fixture
def path(tmp_path: Path) -> Path:
    builder = RecordingBuilder(tmp_path / "run.spyreprof").process()
    return builder.steps([(1, 2, decode_name()), (1, 2, decode_name())]).write()


def cached(path: Path) -> Path:
    return path / "tables" / "steps.parquet"


def test_the_first_look_builds_the_cache_and_the_second_uses_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_recording(path).steps
    assert cached(path).is_file()
    monkeypatch.setattr("spyreprof.recording.store.read_steps", lambda *_: pytest.fail("built again"))
    again = open_recording(path)
    assert again.steps.equals(first)
    assert again.quality.counts["duplicate_steps"] == 1


def test_a_large_count_beside_a_missing_one_is_exact_from_the_cache_too(tmp_path: Path) -> None:
    large = 2**53 + 1
    builder = RecordingBuilder(tmp_path / "run.spyreprof")
    builder.steps([(1, 2, prefill_name(q_k_sum=large)), (3, 4, "execute_context_1(1)_generation_0(0)")])
    path = builder.write()
    for _ in range(2):
        sums = open_recording(path).steps["context_q_k_sum"]
        assert sums.isna().tolist() == [False, True]
        assert sums.iloc[0] == large


def test_rows_appended_since_make_the_cache_stale(path: Path) -> None:
    assert len(open_recording(path).steps) == 1
    shard = next((path / "shards").glob("steps-*"))
    with shard.open("a") as file:
        file.write(json.dumps({"t0": 3, "t1": 4, "n": decode_name()}) + "\n")
    assert len(open_recording(path).steps) == 2


def test_a_cache_of_another_schema_is_not_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spyreprof.recording import schema

    open_recording(path).steps  # noqa: B018 - fills the cache
    narrower = schema.STEPS[:-1]
    monkeypatch.setattr(schema, "STEPS", narrower)
    assert list(open_recording(path).steps.columns) == [column.name for column in narrower]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet" * 100])
def test_a_damaged_cache_is_built_again(path: Path, content: bytes) -> None:
    first = open_recording(path).steps
    cached(path).write_bytes(content)
    assert open_recording(path).steps.equals(first)
    assert cached(path).read_bytes() != content


def test_a_parquet_file_of_something_else_is_not_used(path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    cached(path).parent.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"start_ns": [99]}), cached(path))
    assert open_recording(path).steps["start_ns"].tolist() == [1]


def test_a_link_in_place_of_the_cache_is_not_followed(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (path / "tables").symlink_to(elsewhere)
    assert len(open_recording(path).steps) == 1
    assert not any(elsewhere.iterdir())


def test_a_folder_that_cannot_be_written_reads_all_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert len(open_recording(path).steps) == 1
    assert not cached(path).exists()


def test_a_full_disk_leaves_no_half_written_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet

    def fill_up(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pyarrow.parquet, "write_table", fill_up)
    assert len(open_recording(path).steps) == 1
    assert list((path / "tables").iterdir()) == []


def test_only_the_owner_can_read_the_cache(path: Path) -> None:
    open_recording(path).steps  # noqa: B018 - fills the cache
    assert cached(path).stat().st_mode & 0o077 == 0
