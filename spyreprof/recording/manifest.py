"""The manifest of a recording: what was run, where, how it ended, and what each collector could see."""

from __future__ import annotations

from typing import Literal

import msgspec

from spyreprof.errors import UserError
from spyreprof.recording import layout
from spyreprof.recording.rows import Nanoseconds
from spyreprof.recording.source import READ_ERRORS, Source, not_a_recording, unreadable

MAX_MANIFEST_BYTES = 64 * 2**20


class Exit(msgspec.Struct, frozen=True):
    """How the program ended: with an exit code, or by a signal."""

    code: int | None = None
    signal: int | None = None


class Host(msgspec.Struct, frozen=True):
    """The machine that the program ran on; None where it could not be read."""

    machine: str | None = None
    system: str | None = None
    kernel: str | None = None
    cpu_model: str | None = None
    cpu_count: int | None = None
    affinity: list[int] | None = None
    memory_bytes: int | None = None
    l3_bytes: int | None = None
    container: str | bool | None = None
    virtual: bool | None = None


class Collector(msgspec.Struct, frozen=True):
    """What one collector could see, and how to see the rest."""

    name: str
    state: Literal["ok", "partial", "unavailable"]
    reason: str | None = None
    obtain: str | None = None


class Process(msgspec.Struct, frozen=True):
    """A process of the program. `closed_ns` is None when it ended without saying so."""

    writer: str
    pid: int | None = None
    ppid: int | None = None
    opened_ns: int | None = None
    closed_ns: int | None = None
    closed_how: str | None = None
    steps: int | None = None
    python: str | None = None


class Repeat(msgspec.Struct, frozen=True):
    """Which run of a repeated recording this is, counted from 1."""

    k: int
    of: int


class ListedRun(msgspec.Struct, frozen=True):
    """A run in the list of a repeated recording; it lies in `runs/<k>`, where its own manifest tells the rest."""

    k: int


class ImportedFile(msgspec.Struct, frozen=True):
    """A file that a recording was made of.

    `kind` is that of `spyreprof.inputs`. `path` is for who made the recording; no report has it.
    """

    kind: str
    size_bytes: int
    key: str
    path: str | None = None


class Manifest(msgspec.Struct, frozen=True):
    """See `docs/recording.md`. Keys that are absent keep their default; keys that are unknown are ignored.

    `ended_ns` is None when the recorder itself was killed. `repeats` is None except in the manifest of a repeated
    recording, which holds the list of its runs and nothing of what a run holds; `repeat_count` were asked for.
    `imported` is None except in a recording that was made of files.
    """

    schema_version: int
    run_id: str | None = None
    spyreprof_version: str | None = None
    mode: Literal["record", "attach", "import"] = "record"
    command: list[str] = []
    created_epoch_ns: int | None = None
    started_ns: Nanoseconds | None = None
    ended_ns: Nanoseconds | None = None
    exit: Exit | None = None
    host: Host = Host()
    environment: dict[str, str | None] = {}
    collectors: list[Collector] = []
    processes: list[Process] = []
    interrupted: bool = False
    duration_reached: bool = False
    repeat: Repeat | None = None
    repeat_count: int | None = None
    repeats: list[ListedRun] | None = None
    imported: list[ImportedFile] | None = None
    notes: list[str] = []

    @property
    def finished(self) -> bool:
        """Whether the recorder saw the end; what was made of files is whole, and stacks alone have no times."""
        return self.ended_ns is not None or self.imported is not None

    @property
    def run_numbers(self) -> tuple[int, ...]:
        """The runs that a repeated recording lists, in order.

        `record --repeat` makes no more than `layout.MAX_RUNS`; a list that claims more is not believed.
        """
        return tuple(sorted({run.k for run in self.repeats or () if 1 <= run.k <= layout.MAX_RUNS}))


class _Version(msgspec.Struct):
    schema_version: int


def read_manifest(source: Source) -> Manifest:
    """Read and check the manifest.

    Raises:
        UserError: it is missing, damaged, or newer than this version understands.
    """
    if layout.MANIFEST not in source.names():
        raise not_a_recording(source.path, f"it has no {layout.MANIFEST}")
    try:
        with source.open(layout.MANIFEST) as file:
            text = file.read(MAX_MANIFEST_BYTES)
    except READ_ERRORS as error:
        raise unreadable(source.path / layout.MANIFEST, error) from error
    corrupt = UserError(
        f"The {layout.MANIFEST} of {source.path} is damaged.",
        "Copy the recording again, or record anew.",
    )
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt from error
    try:
        version = msgspec.json.decode(text, type=_Version).schema_version
    except msgspec.ValidationError as error:
        raise not_a_recording(source.path, f"its {layout.MANIFEST} has no schema_version") from error
    if version > layout.SCHEMA_VERSION:
        raise UserError(
            f"{source.path} was made by a newer spyreprof (schema {version}, this one reads up to "
            f"{layout.SCHEMA_VERSION}).",
            "Upgrade with `pip install --upgrade spyreprof`.",
        )
    try:
        return msgspec.json.decode(text, type=Manifest)
    except msgspec.ValidationError as error:
        raise corrupt from error
