"""Hardware files: what a device can do, and who says so. One TOML file per device; users may write their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from spyreprof.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from importlib.abc import Traversable

MAX_FILE_BYTES = 2**20


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number and its provenance.

    Attributes:
        value: in `unit`; positive.
        kind: who says so: the vendor, the source code of the device's software, a measurement, or nobody.
        source: where it can be looked up, or how it was measured.
        date: when, YYYY-MM or YYYY-MM-DD.
        condition: for what the number holds.
    """

    value: float
    unit: str
    kind: Literal["vendor", "upstream-source", "measured", "assumed"]
    source: str
    date: str
    condition: str


class HardwareProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of one device; None where nothing is.

    Attributes:
        name: name of the file without ".toml".
        title: the device in words.
        note: what a reader of the numbers must know.
        compute_flops_per_s: peak by dtype as torch names it, e.g. "float16".
        memory_bytes_per_s: peak bandwidth of the device memory.
        memory_sustained_bytes_per_s: what a streaming program reaches of it.
        scratchpad_bytes_per_core: on-chip memory that a compiler fills.
        cores: compute cores.
    """

    name: str
    title: str
    note: str | None = None
    compute_flops_per_s: dict[str, Value] = {}
    memory_bytes_per_s: Value | None = None
    memory_sustained_bytes_per_s: Value | None = None
    scratchpad_bytes_per_core: Value | None = None
    cores: Value | None = None

    def values(self) -> Iterator[tuple[str, Value]]:
        """Every number with its dotted name, in the order of the fields."""
        for dtype, value in self.compute_flops_per_s.items():
            yield f"compute_flops_per_s.{dtype}", value
        for field in _UNITS:
            found = getattr(self, field)
            if isinstance(found, Value):
                yield field, found


# A number in another unit would be wrong by orders of magnitude without anybody noticing.
_UNITS = {
    "compute_flops_per_s": "flop/s",
    "memory_bytes_per_s": "bytes/s",
    "memory_sustained_bytes_per_s": "bytes/s",
    "scratchpad_bytes_per_core": "bytes",
    "cores": "cores",
}


def built_in_names() -> tuple[str, ...]:
    """Names of the hardware files that come with spyreprof."""
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in _built_in_files()))


def load_hardware(name: str) -> HardwareProfile:
    """Load a hardware file by the name of a built-in one, or by path.

    Raises:
        UserError: there is no such file, or it is not valid.
    """
    for entry in _built_in_files():
        if entry.name == f"{name}.toml":
            return _parse(entry.read_bytes(), name, name)
    path = Path(name)
    if path.suffix != ".toml" and not path.is_file():
        raise UserError(
            f"There is no hardware file {name!r}.",
            f"Known are {', '.join(built_in_names())}; a file of your own is given by its path.",
        )
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise UserError(
            f"The hardware file {name} cannot be read: {error.strerror or error}.",
            f"Check the path, or use one of {', '.join(built_in_names())}.",
        ) from error
    return _parse(content, path.stem, name)


def _built_in_files() -> list[Traversable]:
    return [entry for entry in resources.files(__package__ or __name__).iterdir() if entry.name.endswith(".toml")]


def _parse(content: bytes, name: str, shown: str) -> HardwareProfile:
    remedy = "`spyreprof hardware show spyre` prints a valid one; CONTRIBUTING.md describes the fields."
    try:
        document = tomllib.loads(content.decode("utf-8"))
        profile = msgspec.convert({**document, "name": name}, HardwareProfile)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise UserError(f"The hardware file {shown} is not valid: {error}.", remedy) from error
    for field, value in profile.values():
        unit = _UNITS[field.partition(".")[0]]
        if value.unit != unit:
            raise UserError(f"The hardware file {shown} gives {field} in {value.unit!r}, not {unit!r}.", remedy)
        if not 0 < value.value < float("inf"):
            raise UserError(f"The hardware file {shown} gives {field} as {value.value}, not a positive number.", remedy)
    return profile
