"""The one door through which foreign text enters a report.

Everything is withheld unless an allow-list lets it pass, because nobody can list what is private: names of
hosts, people, customers and models look like any other word. A withheld text becomes a pseudonym, `path-1`,
that stays the same within one report, so that a reader can still see that two places speak of the same thing.

Only this module makes values of type `Public`; the type checker refuses a plain string where the report model
wants one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Literal

from spyreprof.report import allowed, allowed_names
from spyreprof.report.command_line import CommandReader, Word
from spyreprof.report.model import Public, RedactionSummary
from spyreprof.report.visible import visible

Kind = Literal[
    "sentence",
    "package",
    "version",
    "processor",
    "machine",
    "device",
    "dtype",
    "quantisation",
    "run_id",
    "model",
    "accelerator",
]

_EDGE_PUNCTUATION = "([{\"'`<)]}>.,;:!?"
# At most nine digits: longer numbers may be accounts, cards or telephone numbers.
_NUMBER = re.compile(r"[-+~]?\d{1,9}(,\d{3})*(\.\d{1,6}){0,2}(%|[a-z]{1,3}(/s)?)?")
# What the recorder writes in the place of a secret: two such places need not have held the same.
_REMOVED_BY_RECORDER = "[redacted]"
_PSEUDONYM = re.compile(
    r"(?<![\w-])(accelerator|address|category|device|dtype|file|folder|function|kernel|machine|model|module|name|operator"
    r"|option|package|path|processor|program|quantisation|run-id|script|url|value|version)-\d+(?![\w-])"
)
_LOOPBACK = re.compile(r"(https?://)?(127\.0\.0\.1|localhost)(:\d{1,5})?(/metrics)?")


@cache
def vocabulary() -> frozenset[str]:
    """The words that spyreprof's own messages are made of, in lower case."""
    text = resources.files("spyreprof.report").joinpath("vocabulary.txt").read_text(encoding="utf-8")
    return frozenset(text.split())


def own_words(text: str) -> Public:
    """Declare that a text was written by spyreprof and holds nothing from outside but numbers."""
    return Public(visible(text))


def holds_pseudonym(text: Public) -> bool:
    """Whether part of a text was withheld: it then means something within its own report alone."""
    return _PSEUDONYM.search(text) is not None


class RedactedCommand:
    """A command line as it may be shown.

    Attributes:
        text: the words, quoted for a shell.
        complete: nothing was withheld.
        model, quantisation: what its options say of them; None where they say nothing.
    """

    def __init__(self, words: Sequence[Public], complete: bool, named: dict[str, Public]) -> None:
        self.text = Public(shlex.join(words))
        self.complete = complete
        self.model = named.get("model")
        self.quantisation = named.get("quantisation")


class Redactor:
    """Lets text through or replaces it, and counts what it replaced.

    One per report: the same pseudonym in two reports means nothing. Only reports that are to be compared share one.
    """

    def __init__(self) -> None:
        self._pseudonyms: dict[tuple[str, str], Public] = {}
        self._removed: dict[str, int] = {}
        self._rules: dict[Kind, Callable[[str], bool]] = {
            "package": allowed.PACKAGES.__contains__,
            "version": _matcher(allowed.VERSION),
            "processor": _is_public_processor,
            "machine": allowed.MACHINES.__contains__,
            "device": allowed.DEVICE_KINDS.__contains__,
            "dtype": allowed.DTYPES.__contains__,
            "quantisation": _matcher(allowed.OPTION_VALUES["--quantization"]),
            "run_id": _matcher(allowed.RUN_ID),
            "model": allowed.is_public_model,
            "accelerator": _matcher(allowed.ACCELERATOR),
        }

    def text(self, kind: Kind, value: str) -> Public:
        """Let a text of a known kind through whole, or replace it; a sentence is let through word by word."""
        if kind == "sentence":
            return Public(" ".join(self._word(word) for word in value.split()))
        # Patterns and lower case are for ASCII: other scripts have digits and letters that look the part.
        public = value.isascii() and self._rules[kind](value)
        return Public(value) if public else self._pseudonym(kind, value)

    def optional(self, kind: Kind, value: str | None) -> Public | None:
        """As `text`; None stays None."""
        return None if value is None else self.text(kind, value)

    def frame(self, function: str, file: str) -> Public:
        """A Python function and its file, `Queue.get (queue.py)`; pseudonyms where it is of no published package."""
        public = function.isascii() and file.isascii() and allowed.is_public_function(function, file)
        if public:
            return Public(f"{function} ({file.removeprefix('<stdlib>/')})")
        where = self._pseudonym("file", file)
        return Public(f"{self._pseudonym('function', f'{file}:{function}')} ({where})")

    def stack_frame(self, function: str, file: str | None) -> Public:
        """A function of a foreign stack: as `frame`; without a file it may be an operator of a published library."""
        if file is not None:
            return self.frame(function, file)
        if allowed_names.is_public_name(function):
            return Public(function)
        return self._pseudonym("function", function)

    def event_name(self, kind: Literal["kernel", "operator", "category"], value: str) -> Public:
        """The name of an event of a trace: whole, in pieces where only some of them are public, or a pseudonym."""
        if allowed_names.is_public_name(value) or (kind == "category" and value in allowed.EVENT_CATEGORIES):
            return Public(value)
        parts = None if kind == "category" else allowed_names.pieces(value)
        # of an operator's name only a whole one tells something
        if parts is None or (kind == "operator" and not all(public for _, public in parts)):
            return self._pseudonym(kind, value)
        return Public("".join(part if public else self._pseudonym(kind, part) for part, public in parts))

    def command(self, argv: Sequence[str]) -> RedactedCommand:
        """Reduce a command line to its public words: known options, and values that are numbers or listed."""
        words: list[Public] = []
        named: dict[str, Public] = {}
        complete = True
        for word in CommandReader(argv).words():
            shown, whole = self._argument(word)
            complete = complete and whole
            words.append(shown)
            if word.meaning in {"model", "quantisation"}:
                named.setdefault(word.meaning, Public(shown.rpartition("=")[2]))
        return RedactedCommand(words, complete, named)

    def summary(self) -> RedactionSummary:
        """How much was withheld so far."""
        return RedactionSummary(policy="default_deny", removed=dict(sorted(self._removed.items())))

    def _argument(self, word: Word) -> tuple[Public, bool]:
        if word.folder is not None:
            # Counted, not shown: the name alone reads better, and the command is told to be incomplete.
            self._pseudonym("folder", word.folder)
        if word.public is not None and word.withheld is None:
            return Public(word.public), word.folder is None
        withheld = word.withheld or ""
        return Public((word.public or "") + self._pseudonym(word.kind, withheld)), False

    def _word(self, word: str) -> Public:
        core = word.strip(_EDGE_PUNCTUATION)
        if not core:
            # Only marks of ASCII punctuation are in the set, so nothing can hide among them.
            return Public(word)
        start, _, end = word.partition(core)
        if _is_public_word(core):
            return Public(f"{start}{core}{end}")
        return Public(f"{start}{self._pseudonym(_shape(core), core)}{end}")

    def _pseudonym(self, kind: str, value: str) -> Public:
        known = self._pseudonyms.get((kind, value))
        if known is None:
            self._removed[kind] = self._removed.get(kind, 0) + 1
            known = Public(f"{kind.replace('_', '-')}-{self._removed[kind]}")
            if _REMOVED_BY_RECORDER not in value:
                self._pseudonyms[kind, value] = known
        return known


def _matcher(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda value: pattern.fullmatch(value) is not None


def _is_public_word(core: str) -> bool:
    if not core.isascii():
        return core in allowed.UNITS
    lowered = core.lower()
    known = vocabulary()
    if lowered in known or lowered.removesuffix("'s") in known:
        return True
    if lowered in allowed.UNITS or _NUMBER.fullmatch(core) or _LOOPBACK.fullmatch(core):
        return True
    # Compounds and assignments of our own words: "long-lived", "threads=4", "hook:".
    pieces = re.split(r"[-=:_]", lowered)
    return len(pieces) > 1 and all(piece in known or _NUMBER.fullmatch(piece) for piece in pieces)


def _is_public_processor(name: str) -> bool:
    words = re.split(r"[\s,]+", name.lower().strip())
    return len(name) <= 80 and all(
        word in allowed.PROCESSOR_WORDS or allowed.PROCESSOR_NUMBER.fullmatch(word) for word in words
    )


def _shape(value: str) -> str:
    """Which kind of thing a withheld word looks like; it names the pseudonym and nothing else."""
    if "://" in value:
        return "url"
    if "@" in value:
        return "address"
    if "/" in value or "\\" in value or PurePosixPath(value).suffix:
        return "path"
    return "name"
