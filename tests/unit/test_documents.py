"""The documents tell the truth about names: imports are public, and paths, commands and names exist."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import chronofed
from chronofed.cli.main import build_parser

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "examples" / "README.md",
        *(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts),
    ]
)
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(r"^( *)(```+)(.*)\n((?:.*\n)*?)\1\2 *$", re.M)
PUBLIC_MODULES = {"chronofed", "chronofed.theory", "chronofed.theory.nqm"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def python_of(path: Path) -> list[str]:
    """Return the Python code of a page or a program."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return [text]
    return [code for _, _, info, code in FENCE.findall(text) if info.strip() == "python"]


def imported_modules(code: str) -> set[str]:
    """Return the modules of chronofed that code imports from."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name.split(".")[0] == "chronofed"}


def test_documents_import_public_names_only():
    found = {
        (relative(path), module)
        for path in [*PAGES, *PROGRAMS]
        for code in python_of(path)
        for module in imported_modules(code) - PUBLIC_MODULES
    }
    assert found == set()


def inline_code(path: Path) -> list[str]:
    """Return what stands in backticks outside of blocks; roles such as {doc}`...` are Sphinx's to check."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    return [" ".join(code.split()) for code in re.findall(r"(?<![`}])`([^`]+)`(?!`)", text)]


FOLDERS = ("src", "tests", "docs", "examples", "benchmarks", "scripts", ".ci")
FILES = {p.name for top in FOLDERS for p in (ROOT / top).rglob("*")} | {
    p.name for p in ROOT.iterdir()
}
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
COMMANDS = next(a for a in build_parser()._actions if a.dest == "command" or a.choices).choices


def path_exists(code: str, page: Path) -> bool:
    """Look for a path from the top, the page, the documents and the package; a bare name may be anywhere."""
    name = code.split("::")[0].rstrip("/")
    places = (ROOT, page.parent, ROOT / "docs", ROOT / "src" / "chronofed")
    if "/" not in name:
        return name in FILES
    return any((place / name).exists() for place in places)


def names_a_test(code: str) -> bool:
    """Return True if FILE::TEST names a test that is there."""
    file, _, name = code.partition("::")
    return not name or f"def {name}(" in (ROOT / file).read_text()


def resolves(code: str) -> bool:
    """Return True if a dotted name can be imported; the first word is chronofed or a public name."""
    first, *rest = code.split(".")
    here = chronofed if first == "chronofed" else getattr(chronofed, first)
    path = "chronofed"
    for word in rest:
        path = f"{path}.{word}"
        try:
            here = getattr(here, word)
        except AttributeError:
            if word in getattr(here, "__annotations__", {}):
                return True
            try:
                here = importlib.import_module(path)
            except ImportError:
                return False
    return True


def problem(code: str, page: Path) -> str | None:
    """Return what is wrong with a piece of inline code, if it is of a kind that can be checked."""
    words = code.split() or [""]
    if words[0] == "make" and len(words) > 1:
        missing = [
            word for word in words[1:] if re.fullmatch(r"[a-z-]+", word) and word not in TARGETS
        ]
        return f"no target {missing}" if missing else None
    if words[0] == "chronofed" and len(words) > 1:
        command = words[1]
        known = command.startswith("-") or command.isupper() or command in COMMANDS
        return None if known else f"no command {command}"
    if re.fullmatch(r"(\.?[\w-]+/)+[\w.-]*(::\w+)?|[\w-]+\.py", code):
        ours = code.split("/")[0] in FOLDERS or code.endswith(".py")
        if ours and not path_exists(code, page) and f"# file: {code}" not in page.read_text():
            return "no such path"
        return None if not ours or names_a_test(code) else "no such test"
    if re.fullmatch(r"\w+(\.\w+)+", code) and code.split(".")[0] in {
        "chronofed",
        *chronofed.__all__,
    }:
        return None if resolves(code) else "no such name"
    return None


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_inline_code_names_what_exists(page):
    found = {code: problem(code, page) for code in inline_code(page)}
    assert {code: what for code, what in found.items() if what} == {}


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("make lint types", None),
        ("make coffee", "no target ['coffee']"),
        ("chronofed run SPEC", None),
        ("chronofed fly", "no command fly"),
        ("src/chronofed/core/types.py", None),
        ("src/chronofed/locker.py", "no such path"),
        ("locker.py", "no such path"),
        ("tests/unit/test_documents.py::resolves", None),
        ("tests/unit/test_documents.py::unknown", "no such test"),
        ("chronofed.Method", None),
        ("chronofed.core.types.Task", None),
        ("chronofed.lockers", "no such name"),
        ("Scenario.at", None),
        ("Scenario.when", "no such name"),
        ("Visit.key", None),
        ("train.lr", None),
        ("runs/first", None),
    ],
)
def test_what_can_be_checked(code, what):
    assert problem(code, ROOT / "README.md") == what
