"""Gives a recorded program the `spyreprof_agent` of the spyreprof that records it, installed or not.

The one implementation lies beside the package that this folder belongs to, in a checkout and in an installation.
"""

from importlib.machinery import SourceFileLoader
from os.path import abspath, dirname, join, normpath

__file__ = normpath(join(dirname(abspath(__file__)), *[".."] * 3, "spyreprof_agent", "__init__.py"))
# Into this very module: the import system and whoever waits for the module keep the one that they have.
exec(SourceFileLoader(__name__, __file__).get_code(__name__), globals())  # type: ignore[arg-type]  # noqa: S102
