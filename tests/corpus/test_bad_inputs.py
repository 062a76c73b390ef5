"""Every bad input ends in one line that names the culprit and in its exit code, and leaves nothing behind."""

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import msgspec
import pytest

from chronofed.cli.main import commands, main
from chronofed.core.errors import UserCodeError
from chronofed.runs.spec_reference import sections
from chronofed.studies.recipe import Recipe, Scale
from tests.corpus.bad_inputs import CASES, FILES, Case
from tests.corpus.generated_inputs import generated

# Of the quick suite: one case in so many.
QUICK_STEP = 24
LAGS = ("-s", "data.lags=[1]")
OWN_MODULES = ("own", "own_syntax", "own_import", "own_raises", "own_exit")
ALL = list({case.command: case for case in [*generated(), *CASES]}.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with all files and two finished runs, as working folder."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "corrupt").mkdir()
    (folder / "corrupt" / "sweep.db").write_bytes(b"nothing" * 1000)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder.parent / "cache"))
        patch.delenv("CHRONOFED_DATA", raising=False)
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "dont_write_bytecode", True)
        for options in (["spec.toml", "-o", "good"], ["table.toml", *LAGS, "-o", "lagged"]):
            code, _, err = call(["run", *options, "-q"])
            assert code == 0, err
        yield folder
    for name in OWN_MODULES:
        sys.modules.pop(name, None)


def call(arguments: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file below a folder."""
    found = {}
    for place, _, names in os.walk(folder):
        found[place] = (0, 0)
        for name in names:
            stat = os.stat(os.path.join(place, name))
            found[os.path.join(place, name)] = (stat.st_size, stat.st_mtime_ns)
    return found


def check(case: Case, folder: Path) -> None:
    before = contents(folder)
    code, out, err = call(case.arguments)
    first, _, rest = err.partition("\n")
    assert first.startswith("chronofed: "), err
    assert case.words in first
    assert code == case.code
    assert "Traceback" not in err
    # Below the line are only frames of the user's own files.
    assert not rest or code == UserCodeError.exit_code
    assert "site-packages" not in rest
    assert f"chronofed{os.sep}" not in rest
    assert out == ""
    assert contents(folder) == before


def name(case: Case) -> str:
    return case.command.replace("run spec.toml -s ", "")


@pytest.mark.parametrize("case", ALL[::QUICK_STEP], ids=name)
def test_some_bad_inputs(folder, case):
    check(case, folder)


@pytest.mark.corpus
def test_every_bad_input(folder):
    """All in one test: thousands of tests would take longer to collect than to run."""
    failures = []
    for case in ALL:
        try:
            check(case, folder)
        except Exception as error:
            failures.append(f"{case.command}: {type(error).__name__}: {str(error)[:300]}")
    assert not failures, f"{len(failures)} of {len(ALL)}:\n" + "\n".join(failures)


def test_the_corpus_is_large_and_knows_all_commands():
    assert len(CASES) >= 400
    assert len(ALL) >= 1000
    assert {case.command.split()[0] for case in CASES} >= set(commands())
    assert len({case.command for case in CASES}) == len(CASES)


@pytest.mark.parametrize("root", [None, Recipe, Scale])
def test_every_number_of_a_specification_has_two_bounds(root):
    """A field without bounds accepts NaN, infinity, or what overflows later."""
    listed = sections() if root is None else sections(root)
    unbounded = [
        f"{settings.__name__}.{field.name}"
        for section in listed
        for settings in section.choices
        for field in msgspec.inspect.type_info(settings).fields
        for number in numbers(field.type)
        if not bounded(number)
    ]
    assert unbounded == []


def numbers(kind: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        return [kind]
    inner = [getattr(kind, name, None) for name in ("item_type", "value_type", "type")]
    inner += [*getattr(kind, "types", ()), *getattr(kind, "item_types", ())]
    nested = [part for part in inner if isinstance(part, msgspec.inspect.Type)]
    return [number for part in nested for number in numbers(part)]


def bounded(kind: msgspec.inspect.Type) -> bool:
    low = (kind.ge, kind.gt) != (None, None)
    return low and (kind.le, kind.lt) != (None, None)
