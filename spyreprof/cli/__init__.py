"""The command line: one module per verb, and the only catcher of `UserError`."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import typer

from spyreprof import __version__
from spyreprof.errors import EXIT_OUR_FAILURE, UserError

EXIT_INTERRUPTED = 130


class Verb(NamedTuple):
    """A verb, the module of its `command` function, and whether it takes another program's arguments."""

    name: str
    module: str
    passes_arguments_on: bool = False


VERBS: tuple[Verb, ...] = (
    Verb("record", "spyreprof.cli.record", passes_arguments_on=True),
    Verb("attach", "spyreprof.cli.attach"),
    Verb("report", "spyreprof.cli.report"),
    Verb("diff", "spyreprof.cli.diff"),
    Verb("import", "spyreprof.cli.import_"),
    Verb("export", "spyreprof.cli.export"),
    Verb("doctor", "spyreprof.cli.doctor", passes_arguments_on=True),
    Verb("demo", "spyreprof.cli.demo"),
    Verb("pack", "spyreprof.cli.pack"),
    Verb("hardware", "spyreprof.cli.hardware"),
    Verb("rules", "spyreprof.cli.rules"),
    Verb("schema", "spyreprof.cli.schema"),
)

# What a recorder-only installation leaves out (s390x, ppc64le, or a venv with nothing but Typer).
_ANALYSIS_PACKAGES = frozenset(
    {"msgspec", "numpy", "pandas", "pyarrow", "scipy", "prometheus_client", "textual", "rich"}
)


def build_app(only: str | None = None) -> typer.Typer:
    """Assemble the application.

    Args:
        only: load this verb alone, so that `record` imports nothing that it does not use; None for all.
    """
    app = typer.Typer(
        name="spyreprof",
        help="Record LLM inference, and learn where its time goes and what to change.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for verb in VERBS:
        if only in {None, verb.name} and importlib.util.find_spec(verb.module) is not None:
            # Without interspersed options everything from the program's name on is the program's.
            settings: dict[object, object] = {"allow_interspersed_args": False} if verb.passes_arguments_on else {}
            app.command(verb.name, context_settings=settings)(_load(verb))
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    named = words[0] if words and words[0] in {verb.name for verb in VERBS} else None
    try:
        build_app(named)(args=words, prog_name="spyreprof")
    except UserError as error:
        _fail(f"{error.problem} {error.remedy}".strip(), error.exit_code)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _ANALYSIS_PACKAGES:
            raise
        _fail(
            f"This installation can record but not analyse: {error.name} is missing. Install it with "
            "`pip install spyreprof` on x86-64 or arm64, or take the recording there with `spyreprof pack`.",
            EXIT_OUR_FAILURE,
        )
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        _silence_stdout()
        sys.exit(EXIT_OUR_FAILURE)
    except OSError as error:
        # A full disk or quota. Any other file is named where it is opened.
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        _silence_stdout()
        _fail("The output cannot be written: no space is left. Free some, or write elsewhere.", EXIT_OUR_FAILURE)


def _silence_stdout() -> None:
    """Drop what is still buffered: the interpreter must not complain about it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str, exit_code: int) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"spyreprof: {sentence}\n")
    sys.exit(exit_code)


def _load(verb: Verb) -> Callable[..., object]:
    command: Callable[..., object] = importlib.import_module(verb.module).command
    return command


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spyreprof {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Record LLM inference, and learn where its time goes and what to change."""
