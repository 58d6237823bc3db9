"""A page of fixed width: paragraphs, label columns, tables and bars, none of them wider than the page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from spyreprof.report.visible import visible

MIN_WIDTH = 20
# Narrower than this, wrapped text reads worse in a table than in lines of its own.
MIN_TEXT_COLUMN = 16

# Signs of our own texts that an ASCII terminal lacks; whatever else it lacks becomes "?".
_ASCII_SPELLING = str.maketrans(
    {
        "µ": "u",
        "×": "x",
        "–": "-",
        "—": "-",
        "→": "->",
        "≥": ">=",
        "≤": "<=",
        "Σ": "sum ",
        "±": "+/-",
        "…": "...",
    }
    | {"·": ".", "’": "'", "“": '"', "”": '"', "\u00a0": " ", "\u202f": " "}
)
# A private-use character, which `visible` lets no text bring along, holds a number and its unit together.
_GLUE = "\ue000"
_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:%|[mnuµ]?s|min|[kMGT]?B(?:/s)?|[kMGT]?FLOP/s)(?![\w/]))")
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, and whether its cells are numbers, which stand right-aligned."""

    heading: str
    numeric: bool = True


@dataclass
class Page:
    """Collects lines. All text passes through `text`: no line can carry markup or control characters."""

    width: int
    ascii_only: bool = False
    lines: list[Text] = field(default_factory=list)
    _wrapper: Console = field(default_factory=lambda: Console(file=io.StringIO(), width=1000), repr=False)

    def __post_init__(self) -> None:
        self.width = max(self.width, MIN_WIDTH)

    def text(self, content: str, style: str = "") -> Text:
        """Text that shows what it holds: no markup, no escape sequences, ASCII where that is all there is."""
        shown = visible(content)
        if self.ascii_only:
            shown = shown.translate(_ASCII_SPELLING).encode("ascii", "replace").decode("ascii")
        return Text(shown, style=style)

    def blank(self) -> None:
        """An empty line."""
        self.lines.append(Text())

    def paragraph(self, content: str | Text, indent: int = 0, style: str = "") -> None:
        """Wrapped text."""
        self.labelled("", content, indent=indent, label_width=0, style=style)

    def labelled(
        self, label: str, content: str | Text, *, indent: int = 0, label_width: int = 13, style: str = ""
    ) -> None:
        """A label with wrapped text in its own column; on a narrow page the text moves under the label."""
        body = content if isinstance(content, Text) else self.text(content, style)
        head = self.text(label, "bold")
        indent = min(indent, self.width // 4)
        column = indent + label_width
        if label_width and self.width - column < 30:
            column = indent + min(2, label_width)
            if label:
                self.lines.append(Text(" " * indent) + head)
                head = Text()
        body.plain = _NUMBER_AND_UNIT.sub(_GLUE, body.plain)
        for index, line in enumerate(body.wrap(self._wrapper, self.width - column)):
            line.rstrip()
            line.plain = line.plain.replace(_GLUE, " ")
            start = Text(" " * indent) + head if index == 0 else Text()
            start.append(" " * (column - cell_len(start.plain)))
            self.lines.append(start + line)

    def flow(self, label: str, items: Sequence[str], *, indent: int = 0, label_width: int = 13) -> None:
        """Items packed into lines, broken between items where they fit a line at all."""
        room = self.width - indent - label_width
        if room < 30:
            room = self.width - indent - 2
        lines: list[str] = []
        for item in items:
            if lines and cell_len(lines[-1]) + 2 + cell_len(item) <= room:
                lines[-1] += f"  {item}"
            else:
                lines.append(item)
        for index, line in enumerate(lines):
            self.labelled(label if index == 0 else "", line, indent=indent, label_width=label_width)

    def command(self, label: str, words: Sequence[str], *, indent: int = 0, label_width: int = 13) -> None:
        """A shell command that can be copied: where it does not fit, lines end in a backslash."""
        room = self.width - indent - label_width
        if room < 30:
            room = self.width - indent - 2
        lines: list[str] = []
        for word in words:
            if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= room - 2:
                lines[-1] += f" {word}"
            else:
                lines.append(word)
        for index, line in enumerate(lines):
            end = " \\" if index + 1 < len(lines) else ""
            self.labelled(label if index == 0 else "", line + end, indent=indent, label_width=label_width)

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]], *, indent: int = 0) -> None:
        """A table; a last column of text wraps, and on a narrower page each row becomes a list of its cells."""
        cells = [[self.text(cell).plain for cell in row] for row in rows]
        headings = [self.text(column.heading).plain for column in columns]
        widths = [max(cell_len(cell) for cell in column_cells) for column_cells in zip(headings, *cells, strict=True)]
        before_last = indent + sum(widths[:-1]) + 2 * (len(widths) - 1)
        last_width = self.width - before_last
        if last_width < min(widths[-1], len(columns[-1].heading) if columns[-1].numeric else MIN_TEXT_COLUMN):
            for row in cells:
                named = [f"{heading} {cell}" for heading, cell in zip(headings[1:], row[1:], strict=True)]
                self.flow("", [row[0] or headings[0], *named], indent=indent, label_width=2)
            return
        for row, style in [(headings, "dim"), *((row, "") for row in cells)]:
            aligned = [
                " " * (width - cell_len(cell)) + cell if column.numeric else cell + " " * (width - cell_len(cell))
                for cell, width, column in zip(row[:-1], widths[:-1], columns[:-1], strict=True)
            ]
            start = " " * indent + "".join(f"{cell}  " for cell in aligned)
            last = row[-1]
            if columns[-1].numeric:
                last = " " * (widths[-1] - cell_len(last)) + last
            for line in Text(last).wrap(self._wrapper, last_width):
                self.lines.append(Text(start + line.plain, style=style))
                start = " " * before_last

    def bar(self, ratio: float, length: int) -> str:
        """A bar whose full length stands for 1; anything above zero shows at least its thinnest form."""
        if length <= 0 or ratio <= 0:
            return ""
        if self.ascii_only:
            return "#" * min(length, round(ratio * length))
        eighths = min(length * 8, max(1, round(ratio * length * 8)))
        whole, rest = divmod(eighths, 8)
        return "█" * whole + (_EIGHTHS[rest] if rest else "")

    def render(self, *, color: bool = False) -> str:
        """The page as a string that ends in a newline; ANSI styles only with `color`."""
        out = io.StringIO()
        console = Console(
            file=out,
            width=self.width,
            force_terminal=color,
            color_system="standard" if color else None,
            no_color=not color,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )
        for line in self.lines:
            line.rstrip()
            console.print(line, soft_wrap=True)
        return out.getvalue()
