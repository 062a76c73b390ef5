"""The documentation is executed: Python, specs, command lines and doctests."""

import contextlib
import doctest
import importlib
import io
import json
import multiprocessing
import os
import pkgutil
import re
import shlex
import sys
import tomllib
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

import chronofed
from chronofed import Backbone, Detector, Experiment, FedAvg
from chronofed.cli.main import build_parser, main
from chronofed.clients.state import ClientState
from chronofed.clients.store import ClientStore
from chronofed.core.config import Config, Count, is_alternative
from chronofed.core.spec_io import from_table
from chronofed.methods.memories import MemoryItem
from chronofed.runs import spec_reference
from chronofed.studies.load_recipe import load as load_recipe
from chronofed.studies.recipe import Recipe
from chronofed.training.measures import MEASURES

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    + [page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts]
)
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)``` *$", re.M | re.S
)
FILE = re.compile(r"# file: (\w+)\.py\n")
CONTEXT = multiprocessing.get_context("forkserver")  # torch is imported once, pages stay apart
CONTEXT.set_forkserver_preload(["chronofed.runs.runner"])


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    info: str
    code: str
    line: int  # of its first line in the page


def blocks(page: Path, *infos: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = (
        Block(m["info"].strip(), m["code"], text.count("\n", 0, m.start("code")) + 1)
        for m in FENCE.finditer(text)
    )
    return [block for block in found if not infos or block.info in infos]


def with_code(*infos: str) -> list:
    return [pytest.param(page, id=name(page)) for page in PAGES if blocks(page, *infos)]


def execute(page: Path, folder: Path, connection) -> None:
    """Run all Python and read all TOML of a page, in a process and folder of its own."""
    try:
        os.chdir(folder)
        os.environ |= {"XDG_CACHE_HOME": str(folder / "cache")}
        os.environ.pop("CHRONOFED_DATA", None)
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode = True
        warnings.simplefilter("error")
        with contextlib.redirect_stdout(io.StringIO()):
            names = {"__name__": "page"}
            for block in blocks(page, "python", "toml"):
                execute_block(page, block, names)
        connection.send("")
    except BaseException:
        connection.send(traceback.format_exc())


def execute_block(page: Path, block: Block, names: dict) -> None:
    file = FILE.match(block.code)
    if block.info == "toml":
        read_toml(page, block)
    elif file:
        Path(f"{file[1]}.py").write_text(block.code, encoding="utf-8")
        importlib.invalidate_caches()
        names |= vars(importlib.import_module(file[1]))
    else:
        # Blank lines, so that tracebacks show lines of the page.
        lines = "\n" * (block.line - 1) + block.code
        exec(compile(lines, str(page), "exec"), names)


def read_toml(page: Path, block: Block) -> None:
    try:
        table = tomllib.loads(block.code)
        if "view" in table:
            Path("recipe.toml").write_text(block.code, encoding="utf-8")
            load_recipe("recipe.toml")
        else:
            from_table(table, Experiment)
    except Exception as error:
        msg = f"{name(page)}, line {block.line}: {error}"
        raise AssertionError(msg) from error


@pytest.mark.parametrize("page", with_code("python", "toml"))
@pytest.mark.some(5)
def test_code_runs(page, tmp_path):
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=execute, args=(page, tmp_path, theirs))
    process.start()
    theirs.close()
    try:
        problem = ours.recv()
    except EOFError:
        problem = "the process died"
    process.join()
    assert not problem, problem


def command_lines(text: str) -> list[list[str]]:
    """The arguments of every call of chronofed in a console block."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.strip().removeprefix("$ "), comments=True)
        if words[:1] == ["chronofed"]:
            ends = [k for k, word in enumerate(words) if word in ("|", ">", "&&", ";")]
            found.append(words[1 : min(ends, default=len(words))])
    return found


def exit_code(arguments: list[str]) -> int:
    """Return the exit code of parsing the arguments: 0 for --help and --version, too."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            build_parser().parse_args(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.mark.parametrize("page", with_code("console", "shell"))
def test_command_lines_parse(page):
    for block in blocks(page, "console", "shell"):
        for arguments in command_lines(block.code):
            assert exit_code(arguments) == 0, f"{name(page)}: chronofed {shlex.join(arguments)}"


def test_what_is_collected():
    assert command_lines(
        "$ chronofed run a.toml \\\n  -s x=1 | head  # why\nchronofed: note\n"
    ) == [["run", "a.toml", "-s", "x=1"]]
    pages = {name(page) for page in PAGES if blocks(page, "python")}
    assert {"README.md", "docs/quickstart.md", "docs/howto/own-method.md"} <= pages


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_block_escapes_by_a_variant_of_its_language(page):
    infos = {block.info for block in blocks(page) if not block.info.startswith("{")}
    assert infos <= {"python", "toml", "console", "shell", "text", "json", ""}
    fences = re.findall(r"^ *(?:```|~~~)", page.read_text(encoding="utf-8"), re.M)
    assert len(fences) == 2 * len(blocks(page)), "a fence is not closed, or not made of ```"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.name)
def test_examples_are_valid(path):
    assert from_table(tomllib.loads(path.read_text(encoding="utf-8")), Experiment).name


MODULES = [
    module.name
    for module in pkgutil.walk_packages(chronofed.__path__, "chronofed.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("module", MODULES)
def test_doctests(module):
    loaded = importlib.import_module(module)  # no module needs an extra to be imported
    result = doctest.testmod(loaded, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


@pytest.fixture(scope="module")
def extensions():
    """The modules in docs/_ext."""
    pytest.importorskip("sphinx")
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    yield importlib.import_module("spec_tables"), importlib.import_module("project_tables")
    sys.path.remove(str(ROOT / "docs" / "_ext"))


def shipped(base: type) -> set[type]:
    """All classes below a base that the package itself defines."""
    found = {cls for sub in base.__subclasses__() for cls in (sub, *shipped(sub))}
    return {cls for cls in found if cls.__module__.startswith("chronofed.")}


@pytest.mark.parametrize(("root", "option"), [(Experiment, []), (Recipe, ["--recipe"])])
def test_the_reference_has_every_field_and_is_fresh(root, option, capsys):
    page = ROOT / "docs" / "reference" / ("recipe.md" if option else "spec.md")
    assert main(["spec", *option, "--markdown"]) == 0
    text = capsys.readouterr().out
    assert page.read_text(encoding="utf-8") == text, f"stale; see the first line of {name(page)}"
    for section in spec_reference.sections(root):
        assert section.title in text
        for cls in section.choices:
            assert all(f"| `{field.name}` |" in text for field in msgspec.structs.fields(cls)), cls
    anchors = {re.sub(r"[^a-z_]", "", title) for title in re.findall(r"^## (.*)$", text, re.M)}
    assert set(re.findall(r"\]\(#(.*?)\)", text)) <= anchors


def test_a_spec_can_name_every_alternative():
    roots = (Experiment, Recipe)
    listed = {
        cls
        for root in roots
        for section in spec_reference.sections(root)
        for cls in section.choices
    }
    # A detector is a setting of a user's part; the package has no part yet that holds one.
    named = {c for c in shipped(Config) if is_alternative(c) and not issubclass(c, Detector)}
    assert named <= listed, "an alternative that no spec can name"


class Sample(Config):
    """One field of every type.

    Attributes:
        size: How many,
            at least one.
        share: Which part.
        which: One of two.
        widths: Some numbers.
        limit: Optional.
        backbone: Nested.
    """

    size: Count
    share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.5
    which: Literal["a", "b"] = "a"
    widths: tuple[Count, ...] = (200,)
    limit: Count | None = None
    backbone: Backbone = FedAvg()
    options: dict[str, int | bool] = msgspec.field(default_factory=dict)


def test_a_key_has_type_range_default_and_meaning():
    found = {key.name: key for key in spec_reference.keys(Sample)}
    backbone = found.pop("backbone")
    assert [(key.name, key.type, key.default, key.meaning) for key in found.values()] == [
        ("size", "whole number >= 1", "required", "How many, at least one."),
        ("share", "number >= 0 and < 1", "``0.5``", "Which part."),
        ("which", '``"a"`` or ``"b"``', '``"a"``', "One of two."),
        ("widths", "list of (whole number >= 1)", "``[200]``", "Some numbers."),
        ("limit", "whole number >= 1", "none", "Optional."),
        ("options", "table of whole number or true or false", "``{}``", "(see above)"),
    ]
    assert (backbone.section.title, backbone.type) == ("[method.backbone]", "")
    assert backbone.default == '``kind = "fedavg"``'


def test_tables_of_the_documentation(extensions):
    spec_tables, _ = extensions
    rows = " ".join(" ".join(spec_tables.table(Sample)).split()).split(" * - ")
    assert rows[2] == "``size`` - whole number >= 1 - required - How many, at least one."
    assert ":doc:`[method.backbone] </reference/spec>`" in rows[7]
    assert "``fedavg``" in "".join(spec_tables.parts_table(Backbone))


def test_other_generated_pieces(extensions):
    _, project_tables = extensions
    rooms = set(project_tables.layers())
    assert {"core", "training", "cli"} <= rooms
    assert {command for command, _ in project_tables.commands()} >= {"run", "resume", "compare"}
    api = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    listed = [
        public
        for arguments in re.findall(r"^\.\. public-api:: (.*)$", api, re.M)
        for public in project_tables.public_names(arguments.split())
    ]
    assert sorted(listed) == chronofed.__all__


def keys(content: object) -> set[str]:
    """All keys of a JSON document, at any depth."""
    parts = content.values() if isinstance(content, dict) else content
    inner = (keys(part) for part in parts if isinstance(part, dict | list))
    return set(content if isinstance(content, dict) else ()).union(*inner)


def test_json_keys_are_documented(tmp_path, monkeypatch, capsys):
    """Every key of the JSON outputs and of a run's metrics is in the reference of the command line."""
    monkeypatch.chdir(tmp_path)
    spec = "rounds = 2\n[model]\nkind = 'linear'\n[train]\nsteps = 1\n"
    Path("spec.toml").write_text(spec, encoding="utf-8")
    found: set[str] = set()
    for command in ("run spec.toml -o one", "compare one", "scenario spec.toml --rounds 1"):
        assert main([*command.split(), "--json"]) == 0
        found |= keys(json.loads(capsys.readouterr().out))
    for command in (
        "spec train",
        "weights",
        "nqm --seeds 2 --settings BRD-SL-SC",
        "rates",
        "rates --case convex",
        "rates --case non-convex",
    ):
        assert main([*command.split(), "--json"]) == 0
        found |= keys(json.loads(capsys.readouterr().out))
    main(["methods", "--json"])
    found.update(*json.loads(capsys.readouterr().out))
    main(["data", "list", "--json"])
    found |= keys(json.loads(capsys.readouterr().out))
    with ClientStore(Path("client.sqlite")) as client_store:
        client_store.commit("order", b"", ClientState({}, (MemoryItem(0, 0, 0, 0, {}),)))
    for command in ("client inspect client.sqlite", "client forget client.sqlite --keys 0 --yes"):
        assert main([*command.split(), "--json"]) == 0
        found |= keys(json.loads(capsys.readouterr().out))
    for line in Path("one/metrics.jsonl").read_text(encoding="utf-8").splitlines():
        found |= keys(json.loads(line))
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert ".. measures::" in page
    # The directive lists every measure of the registry.
    page += "".join(f"`{measure.key}`" for measure in MEASURES)
    plain = {re.sub(r"^last_|^seconds_.*", "", key) for key in found}  # `last_KEY`, `seconds_PHASE`
    assert {key for key in plain if key and f"`{key}`" not in page} == set()
    assert {file.name for file in Path("one").iterdir() if f"`{file.name}" not in page} == set()


def test_evidence_exists():
    """The tests that the errata page names are there, and no row is without evidence."""
    text = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    cited = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert len(cited) > 15
    assert [path for path in cited if not (ROOT / path).is_file()] == []
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    assert {len(row) for row in rows} == {6}
    empty = [row[2] for row in rows if not row[4].strip()]
    assert len(empty) <= 1, empty  # only what cannot be checked at all
