"""What went wrong, in words for the person at the keyboard.

Standard library only: the recorder imports this.
"""

from __future__ import annotations

# Exit codes that scripts rely on.
EXIT_OUR_FAILURE = 1
EXIT_WRONG_USE = 2
EXIT_NOT_MET = 3


class UserError(Exception):
    """Something the user can put right: one sentence about the problem, one about the remedy.

    `spyreprof.cli.main` is the only place that catches it: it prints both to stderr and exits with `exit_code`.
    """

    def __init__(self, problem: str, remedy: str = "", exit_code: int = EXIT_WRONG_USE) -> None:
        super().__init__(f"{problem}\n{remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy
        self.exit_code = exit_code
