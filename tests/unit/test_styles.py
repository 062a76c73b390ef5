"""One look for a method: the same everywhere, and told apart by all eyes."""

import itertools
import re

import numpy as np
import pytest

from chronofed import CoreSet, Experiment, Forget, Method, Taylor
from chronofed.core import toml
from chronofed.reports.groups import Group
from chronofed.reports.runs import RunView
from chronofed.reports.styles import COLOURS, DARK, DASHES, STYLES, assign, style_key, styles_of
from chronofed.reports.web.page import asset, style

# Machado, Oliveira and Fernandes (2009), severity 1.
EYES = {
    "normal": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}
TO_LMS = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


def linear(colour):
    parts = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def perceived(colour, eye):
    """Oklab, in hundredths."""
    seen = np.clip(np.array(EYES[eye]) @ linear(colour), 0, 1)
    return 100 * np.array(TO_LAB) @ np.cbrt(np.array(TO_LMS) @ seen)


def contrast(one, two):
    light = sorted(linear(c) @ [0.2126, 0.7152, 0.0722] + 0.05 for c in (one, two))
    return light[1] / light[0]


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("colours", [COLOURS, DARK], ids=["light", "dark"])
def test_colours_are_apart_for_all_eyes(colours, eye):
    nearest = min(
        np.linalg.norm(perceived(a, eye) - perceived(b, eye))
        for a, b in itertools.combinations(colours, 2)
    )
    assert nearest > 8.5


@pytest.mark.parametrize(("colours", "ground"), [(COLOURS, "#ffffff"), (DARK, "#181d23")])
def test_lines_stand_out_from_the_ground(colours, ground):
    assert min(contrast(colour, ground) for colour in colours) >= 3


def test_there_are_32_styles():
    keys = [(f"method {k}", "") for k in range(STYLES)]
    assert STYLES == 32
    assert sorted(assign(keys).values()) == list(range(32))


def test_the_page_draws_the_same_lines():
    drawn = re.search(r"cf\.dash = \(k\) => (\[.*\])\[", asset("base.js"))
    assert drawn[1] == str([list(dash) for dash in DASHES])
    for k in range(8):
        assert f"--c{k}: {COLOURS[k]};" in style()
        assert f"--c{k}: {DARK[k]};" in style()


def view(tmp_path, memory, **settings):
    spec = toml.loads(Experiment(method=Method(memory=memory), **settings).resolved())
    return Group("a", (RunView(tmp_path, spec, "finished", [], {}),))


def test_a_method_keeps_its_colour_whatever_is_beside_it(tmp_path):
    fedavg, core, taylor = (view(tmp_path, m) for m in (Forget(), CoreSet(5), Taylor()))
    both = dict(zip(("fedavg", "core"), styles_of([fedavg, core]), strict=True))
    assert styles_of([core, taylor, fedavg]) == [both["core"], 2, both["fedavg"]]
    assert both == {"fedavg": 0, "core": 1}


def test_variants_of_a_method_differ_in_the_line(tmp_path):
    found = [view(tmp_path, m) for m in (Forget(), CoreSet(5), CoreSet(10))]
    fedavg, *cores = styles_of(found)
    assert fedavg == 0
    assert sorted(cores) == [1, 9]


def test_a_sweep_of_one_method_has_colours(tmp_path):
    found = [view(tmp_path, Forget(), rounds=rounds) for rounds in range(1, 9)]
    assert sorted(styles_of(found)) == list(range(8))


def test_seeds_share_a_style_and_known_styles_stay(tmp_path):
    one, two = (view(tmp_path, Forget(), seed=seed) for seed in (0, 1))
    key = style_key(one.runs[0].spec)
    assert key == style_key(two.runs[0].spec)
    assert styles_of([one, two], {key: 17}) == [17, 17]
