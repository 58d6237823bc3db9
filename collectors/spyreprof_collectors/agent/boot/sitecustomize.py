"""The way into every Python process of a recorded program: `site` imports this at start-up.

Any Python may meet this file, old ones too, so it keeps to syntax that all of them read.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _install():
    # type: () -> None
    if not os.environ.get("SPYREPROF_DIR") or sys.version_info < (3, 10):
        return
    try:
        from _spyreprof.install import install  # type: ignore[import-not-found]  # a neighbour on PYTHONPATH

        install("sitecustomize")
    except Exception as error:
        sys.stderr.write("spyreprof: this process is not recorded: %s: %s\n" % (type(error).__name__, error))  # noqa: UP031


def _chain():
    # type: () -> None
    """Run the sitecustomize that this one hides, as Python would have.

    What it raises passes through to `site`, which reports it as it does for any sitecustomize.
    """
    this = sys.modules.pop("sitecustomize", None)
    hidden = [entry for entry in sys.path if os.path.abspath(entry) == _FOLDER]
    sys.path[:] = [entry for entry in sys.path if entry not in hidden]
    found = False
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401

        found = True
    except ImportError as error:
        # Python 2 has no `name`; there the message is all there is.
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        if not hasattr(error, "name") and "sitecustomize" not in str(error):
            raise
    finally:
        for entry in hidden:
            if entry not in sys.path:
                sys.path.insert(0, entry)
        if not found and this is not None and sys.exc_info()[0] is None:
            # The import system looks this entry up once more when this file has run.
            sys.modules["sitecustomize"] = this


_install()
_chain()
