"""The specifications on the page about related systems train."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from chronofed import Backbone, Experiment, Linear, Memory, RoundWeights, Train
from chronofed.core.spec_io import alternatives, from_table
from chronofed.runs import runner
from chronofed.scenarios import Membership

PAGE = (Path(__file__).parents[2] / "docs" / "related.md").read_text(encoding="utf-8")
SPECS = [tomllib.loads(code) for code in re.findall(r"^```toml\n(.*?)^```$", PAGE, re.M | re.S)]


@pytest.mark.parametrize("table", SPECS, ids=lambda table: table["name"])
@pytest.mark.some(3)
def test_a_specification_trains(table, workdir):
    experiment = from_table(table, Experiment)
    small = msgspec.structs.replace(
        experiment,
        rounds=2,
        model=experiment.model if "model" in table else Linear(),
        train=Train(
            steps=2, slow=experiment.train.slow, steps_schedule=experiment.train.steps_schedule
        ),
        evaluate=msgspec.structs.replace(experiment.evaluate, seen=0),
        engine="serial",
    )
    assert runner.run(small, workdir / "run")["rounds"] == 2


def test_every_system_has_a_specification():
    """And every kind that the page names exists."""
    parts = [part for table in SPECS for part in table.get("method", {}).values()]
    scenarios = [table["scenario"] for table in SPECS if "scenario" in table]
    parts += [scenario["membership"] for scenario in scenarios if "membership" in scenario]
    shown = {part["kind"] for part in parts if isinstance(part, dict)}
    ours = {"fedcurv", "ewc", "fedlin", "fedgate", "mifa", "pfedme", "a-gem", "gem"}
    ours |= {"distil", "balanced", "fedreg", "fedrod"}
    ours |= {"q-ffl", "afl", "l2gd", "fedrep", "fedglomo", "compressed", "pvi", "fedrobust"}
    ours |= {"si", "cwr", "pnn", "additive", "heterofl", "ccvr", "feddf"}
    ours |= {"fedprox", "scaffold", "mime", "mimelite", "fednova", "ditto", "fedopt", "clusters"}
    ours |= {"taylor", "core-set", "generative", "concepts", "generator"}
    assert shown >= ours | {"diurnal", "blocks"}
    known = {
        kind for base in (Backbone, Memory, RoundWeights, Membership) for kind in alternatives(base)
    }
    assert shown <= known


def test_every_line_of_the_table_leads_to_a_specification():
    """Or to several, as the section has it."""
    table = PAGE.partition("## Systems that are here")[2].partition("\n###")[0]
    sections = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-"): text
        for heading, text in re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
    }
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(lines) > 40
    for line in lines:
        anchor = re.search(r"\(#([a-z0-9-]+)\)", line)
        assert anchor, line
        assert "```toml\n" in sections[anchor[1]], line
