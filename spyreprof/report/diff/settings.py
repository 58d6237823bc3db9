"""Settings in force and versions: what a comparison may be about. Where nothing tells them, the command does."""

from __future__ import annotations

import shlex

from spyreprof.report.diff import thresholds
from spyreprof.report.diff.model import Condition, State
from spyreprof.report.diff.pair import RECORD_AGAIN, Pair, alike, row, spelled, state_of_texts, who_lacks
from spyreprof.report.model import Public
from spyreprof.report.redact import holds_pseudonym, own_words

Setting = bool | int | float | Public

SETTING = "setting "
SOFTWARE = "version of "
COMMAND = "command"
SETTINGS = "settings"
# The engine sizes its cache by what memory is left when it starts: a little more or less is no setting.
_SIZED_BY_ENGINE = ("kv_blocks", "kv_tokens", "state_blocks")


def settings_and_versions(pair: Pair) -> list[Condition]:
    """A row for each setting and each package that is not the same, and one for all that are."""
    command = _command(pair)
    return [*_settings(pair, command), *_software(pair), command]


def _command(pair: Pair) -> Condition:
    a, b = pair.a.run, pair.b.run
    state, note = state_of_texts(pair, a.command_redacted, b.command_redacted)
    if state == "unknown" and changed_options(a.command_redacted, b.command_redacted):
        state, note = "differs", "as far as it is not withheld"
    if state == "same" and not pair.shared and not (a.command_complete and b.command_complete):
        state, note = "unknown", "part of it is withheld"
    elif state == "same" and not (a.command_complete and b.command_complete):
        note = "apart from the folders of programs"
    return row(COMMAND, a.command_redacted, b.command_redacted, state, needed_for="nothing", note=note)


def changed_options(a: Public | None, b: Public | None) -> list[Public]:
    """Options that the commands give differently, `--name from -> to`; empty where one is unknown or withheld there."""
    if a is None or b is None:
        return []
    before, after = _options(a), _options(b)
    return [
        own_words(f"{name} {before.get(name, 'absent')} -> {after.get(name, 'absent')}")
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
        and not any(holds_pseudonym(side.get(name, own_words(""))) for side in (before, after))
    ]


def _options(command: Public) -> dict[str, Public]:
    """Options of a command and their values, which stand behind them or behind an equals sign."""
    try:
        words = shlex.split(command)
    except ValueError:
        return {}
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not word.lstrip("-")[:1].isdecimal():
            name, equals, value = word.partition("=")
            found[name] = [value] if equals else []
        elif name:
            found[name].append(word)
    return {option: own_words(" ".join(values) or "given") for option, values in found.items()}


def _settings(pair: Pair, command: Condition) -> list[Condition]:
    a, b = pair.a.settings or {}, pair.b.settings or {}
    differing: list[Condition] = []
    unknown: list[str] = []
    same = 0
    for name in sorted({*a, *b}):
        state = _state_of_setting(pair, name, a.get(name), b.get(name))
        if state == "differs":
            shown = [spelled(side[name], str) for side in (a, b)]
            differing.append(row(f"{SETTING}{name}", shown[0], shown[1], state, obtain="Keep it the same."))
        elif state == "unknown":
            unknown.append(name)
        else:
            same += 1
    rest = _other_settings(pair, unknown, same, command)
    return [*differing, rest]


def _other_settings(pair: Pair, unknown: list[str], same: int, command: Condition) -> Condition:
    shown = [spelled(report.settings, lambda known: f"{len(known)} known") for report in (pair.a, pair.b)]
    state: State = "same" if same and not unknown else "unknown"
    note: str | None = None
    if unknown:
        note = f"one side alone tells {', '.join(unknown)}"
    elif not same:
        note = "no setting is known on both sides"
    if state == "unknown" and command.state == "same":
        state, note = "same", "the commands are the same"
    elif state == "unknown" and command.state == "differs":
        note = f"{note}; the commands differ"
    obtain = "Have /metrics polled in both runs, or give both recordings so that their commands can be compared."
    return row(SETTINGS, shown[0], shown[1], state, note=note, obtain=obtain)


def _state_of_setting(pair: Pair, name: str, a: Setting | None, b: Setting | None) -> State:
    if a is None or b is None:
        return "unknown"
    if isinstance(a, str) and isinstance(b, str):
        return state_of_texts(pair, a, b)[0]
    if name in _SIZED_BY_ENGINE and not isinstance(a, str) and not isinstance(b, str):
        return "same" if alike(float(a), float(b), thresholds.BETWEEN_SESSIONS.value) else "differs"
    return "same" if a == b else "differs"


def _software(pair: Pair) -> list[Condition]:
    a, b = pair.a.conditions.software or {}, pair.b.conditions.software or {}
    if not a or not b:
        lacking = who_lacks(a or None, b or None)
        return [row("versions", None, None, "unknown", note=lacking, obtain=RECORD_AGAIN)]
    rows = []
    for name in sorted({*a, *b}):
        state, note = state_of_texts(pair, a.get(name), b.get(name))
        if not pair.shared and holds_pseudonym(name):
            state = "unknown"
        if state != "same":
            obtain = "Record both in environments that have the same packages."
            rows.append(row(f"{SOFTWARE}{name}", a.get(name), b.get(name), state, note=note, obtain=obtain))
    same = own_words(f"{len(a.keys() & b.keys())} packages")
    return rows or [row("versions", same, same, "same")]
