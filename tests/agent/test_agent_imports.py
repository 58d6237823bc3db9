"""Post-import hooks: called once per execution, whatever finds and loads the module, and never in the way."""

from __future__ import annotations

from pathlib import Path

from agent_program import run

# A module `subject` is watched; what happens is printed.
WATCH = """
    import importlib, importlib.util, sys
    from _spyreprof import install
    agent = install.install("again")
    agent.imports.when_imported("subject", lambda module: print("called", module.VALUE))
"""


def watched(tmp_path: Path, program: str, subject: str = "VALUE = 1\nprint('executed')") -> str:
    (tmp_path / "subject.py").write_text(subject)
    ended = run(tmp_path, f"{WATCH}\n{program}")
    assert ended.code == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout


def test_the_callback_follows_the_import_and_the_loader_stays_as_it_was(tmp_path: Path) -> None:
    program = """
    import subject
    import subject
    print(type(subject.__loader__).__name__, vars(subject.__loader__).keys() - {"name", "path"})
    print(subject.__loader__ is subject.__spec__.loader, importlib.util.find_spec("subject") is subject.__spec__)
    """
    assert watched(tmp_path, program) == "executed\ncalled 1\nSourceFileLoader set()\nTrue True\n"


def test_a_reload_calls_again(tmp_path: Path) -> None:
    program = "    import subject; importlib.reload(subject)"
    assert watched(tmp_path, program) == "executed\ncalled 1\nexecuted\ncalled 1\n"


def test_a_module_imported_before_is_called_for_at_once(tmp_path: Path) -> None:
    program = """
    import subject
    agent.imports.when_imported("subject", lambda module: print("at once"))
    """
    assert watched(tmp_path, program) == "executed\ncalled 1\nat once\n"


def test_a_module_that_was_only_looked_up_is_not_called_for(tmp_path: Path) -> None:
    assert watched(tmp_path, "    print(importlib.util.find_spec('subject').name)") == "subject\n"


def test_a_missing_module_and_a_raising_one_fail_as_ever(tmp_path: Path) -> None:
    program = """
    agent.imports.when_imported("no_such_module", print)
    for name in ("no_such_module", "subject"):
        try:
            importlib.import_module(name)
        except Exception as error:
            print(type(error).__name__, error, name in sys.modules)
    """
    expected = "ModuleNotFoundError No module named 'no_such_module' False\nValueError as ever False\n"
    assert watched(tmp_path, program, "raise ValueError('as ever')") == expected


def test_a_lazy_loader_stays_lazy(tmp_path: Path) -> None:
    program = """
    spec = importlib.util.find_spec("subject")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["subject"] = module
    spec.loader.exec_module(module)
    print("not yet")
    module.VALUE
    """
    assert watched(tmp_path, program) == "not yet\nexecuted\ncalled 1\n"


def test_other_finders_and_old_loaders_load_as_before(tmp_path: Path) -> None:
    program = """
    class Loader:  # without exec_module, as before Python 3.4
        def load_module(self, name):
            module = type(sys)(name)
            module.VALUE = 2
            sys.modules[name] = module
            return module
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "subject":
                return importlib.util.spec_from_loader(name, Loader())
    class Watcher:  # another tool that asks everybody behind it
        def find_spec(self, name, path=None, target=None):
            if name == "subject" and not getattr(self, "asking", False):
                self.asking = True
                try:
                    return importlib.util.find_spec(name)
                finally:
                    self.asking = False
    sys.meta_path[:0] = [Watcher(), Finder()]
    import warnings
    warnings.simplefilter("ignore")
    import subject
    print(subject.VALUE)
    """
    assert watched(tmp_path, program) == "2\n"


def test_a_callback_that_raises_is_recorded_and_the_import_succeeds(tmp_path: Path) -> None:
    (tmp_path / "subject.py").write_text("")
    ended = run(tmp_path, f"{WATCH}\n    import subject; print('imported')")
    assert (ended.code, ended.stdout, ended.stderr) == (0, "imported\n", "")
    (failed,) = [row for row in ended.process_rows("hook") if row["state"] == "failed"]
    assert failed["name"] == "import subject"
    assert "VALUE" in failed["reason"]


def test_a_package_from_a_zip_is_watched_without_catching_its_neighbours(tmp_path: Path) -> None:
    program = """
    import os, zipfile
    os.remove("subject.py")
    with zipfile.ZipFile("modules.zip", "w") as archive:
        archive.writestr("subject.py", "import neighbour\\nVALUE = 3")
        archive.writestr("neighbour.py", "VALUE = 4")
    sys.path.insert(0, "modules.zip")
    importlib.invalidate_caches()
    import neighbour
    print(neighbour.VALUE)
    import subject
    """
    assert watched(tmp_path, program) == "4\ncalled 3\n"
