"""Sphinx: ``python -m sphinx -W --keep-going -q -b html docs docs/_build/html``; works offline."""

import os
import sys
from pathlib import Path

os.environ["COLUMNS"] = "96"  # width of the help texts
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import chronofed

project = "chronofed"
author = "The chronofed authors"
project_copyright = author
version = release = chronofed.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "mathml",
    "spec_tables",
    "project_tables",
    "number_cells",
    "real_report",
    "accessible",
]
exclude_patterns = [
    "_build",
    "_templates",
    "results/paper/*",
    "results/tuning/*",
]  # the latter are included by a page
language = "en_GB"

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
add_module_names = False

html_theme = "furo"
html_title = f"chronofed {release}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["mathml.css", "pages.css"]
html_copy_source = False
html_show_sphinx = False
