"""Reads a command line word by word and says of each what is public in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from spyreprof.report import allowed

# A number, a list of numbers, or a span A:B.
_NUMBER = re.compile(r"[-+]?\d{1,9}(\.\d{1,6})?([eE][-+]?\d{1,2})?(,\d{1,9}(\.\d{1,6})?){0,31}|\d{1,9}:\d{1,9}")
_MODULE = re.compile(r"[a-z][a-z0-9_]{0,30}(\.[a-z][a-z0-9_]{0,30}){0,8}")
_SCRIPT = re.compile(r"[a-z0-9_-]{1,60}\.(py|sh)")
_OPTION = re.compile(r"--[A-Za-z0-9][A-Za-z0-9._-]*(=.*)?|-[A-Za-z]", re.DOTALL)

Meaning = Literal["program", "option", "model", "quantisation", "other"]


@dataclass(frozen=True)
class Word:
    """One word of a command: what may be shown of it, and what may not.

    Attributes:
        public: text that may be shown; with `withheld`, what stands before the pseudonym.
        withheld: text that may not be shown; None when there is none.
        folder: the folder of a program or script whose own name may be shown, but not where it lies.
        kind: what the withheld text is called.
        meaning: what the word says about the run.
    """

    public: str | None = None
    withheld: str | None = None
    folder: str | None = None
    kind: str = "value"
    meaning: Meaning = "other"


class CommandReader:
    """Walks a command line once, keeping in mind which option waits for its value."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv
        self._option: str | None = None
        self._program_seen = False
        self._script_seen = False
        self._program = ""
        self._serves = False

    def words(self) -> Iterator[Word]:
        """The words in order, one for each argument."""
        for argument in self._argv:
            word = self._read(argument)
            # The patterns are for ASCII: other scripts have digits and letters that look the part.
            yield word if argument.isascii() else Word(withheld=argument, kind=word.kind)

    def _read(self, argument: str) -> Word:
        option, self._option = self._option, None
        if option is not None and not _is_option(argument):
            return self._value(option, argument, prefix="")
        if not self._program_seen:
            return self._read_program(argument)
        if argument.startswith("--") and len(argument) > 2:
            return self._long_option(argument)
        if argument.startswith("-") and len(argument) > 1 and not _NUMBER.fullmatch(argument):
            return self._short_option(argument)
        return self._positional(argument)

    def _read_program(self, argument: str) -> Word:
        self._program_seen = True
        folder, _, name = argument.rpartition("/")
        if not allowed.PROGRAMS.fullmatch(name):
            self._script_seen = True
            return self._script(argument, "program")
        self._program = name
        if folder in allowed.PROGRAM_FOLDERS:
            return Word(public=argument, meaning="program")
        return Word(public=name, folder=folder, meaning="program")

    def _long_option(self, argument: str) -> Word:
        name, equals, value = argument.partition("=")
        if not _is_public_option(name):
            self._option = None if equals else name
            return Word(withheld=argument, kind="option", meaning="option")
        if equals:
            return self._value(name, value, prefix=f"{name}=")
        if name not in allowed.FLAGS:
            self._option = name
        return Word(public=name, meaning="option")

    def _short_option(self, argument: str) -> Word:
        before_script = self._program.startswith("py") and not self._script_seen
        if before_script and argument in allowed.PYTHON_FLAGS:
            return Word(public=argument, meaning="option")
        if re.fullmatch("-[A-Za-z]", argument):
            self._option = "python -m" if before_script and argument == "-m" else argument
            return Word(public=argument, meaning="option")
        return Word(
            public=argument[:2] if argument[1].isascii() and argument[1].isalpha() else None,
            withheld=argument,
        )

    def _value(self, option: str, value: str, *, prefix: str) -> Word:
        if option == "python -m":
            self._script_seen = True
            public = _MODULE.fullmatch(value) and value.partition(".")[0] in allowed.MODULE_ROOTS
            return Word(public=value) if public else Word(withheld=value, kind="module")
        if option in allowed.MODEL_OPTIONS:
            if allowed.is_public_model(value):
                return Word(public=prefix + value, meaning="model")
            return Word(public=prefix, withheld=value, kind="model", meaning="model")
        meaning: Meaning = "quantisation" if option in allowed.QUANTISATION_OPTIONS else "other"
        listed = allowed.OPTION_VALUES.get(option)
        if listed is not None and listed.fullmatch(value):
            return Word(public=prefix + value, meaning=meaning)
        if not _may_be_secret(option) and (_NUMBER.fullmatch(value) or value.lower() in allowed.PLAIN_VALUES):
            return Word(public=prefix + value, meaning=meaning)
        return Word(public=prefix, withheld=value, kind="path" if "/" in value else "value")

    def _positional(self, argument: str) -> Word:
        if argument == "--" or argument in allowed.PLAIN_WORDS:
            self._serves = argument == "serve"
            return Word(public=argument)
        if self._serves:
            # `vllm serve MODEL`
            self._serves = False
            return self._value("--model", argument, prefix="")
        if allowed.PROGRAMS.fullmatch(argument):
            self._program = argument
            return Word(public=argument)
        if not self._script_seen:
            self._script_seen = True
            return self._script(argument, "script")
        if _NUMBER.fullmatch(argument):
            return Word(public=argument)
        return Word(withheld=argument, kind="path" if "/" in argument else "value")

    @staticmethod
    def _script(argument: str, kind: str) -> Word:
        folder, _, name = argument.rpartition("/")
        words = re.split(r"[_-]", name.rpartition(".")[0])
        if argument in allowed.SCRIPTS:
            return Word(public=argument, meaning="program")
        if _SCRIPT.fullmatch(name) and all(word in allowed.SCRIPT_WORDS for word in words):
            return Word(public=name, folder=folder or None, meaning="program")
        return Word(withheld=argument, kind=kind, meaning="program")


def _is_option(argument: str) -> bool:
    return _OPTION.fullmatch(argument) is not None


def _is_public_option(name: str) -> bool:
    words = name.lower().lstrip("-").replace("_", "-").split("-")
    return all(word in allowed.OPTION_WORDS or word in allowed.SECRET_WORDS for word in words)


def _may_be_secret(option: str) -> bool:
    bare = option.lower().lstrip("-").replace("_", "-")
    if allowed.TOKEN_COUNTS.fullmatch(bare):
        return False
    return any(word in allowed.SECRET_WORDS for word in bare.split("-"))
