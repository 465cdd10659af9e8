"""Settings of the documentation site: ``make docs`` builds it into build/docs."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tomllib
from pathlib import Path

import geoprep

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
sys.path.insert(0, str(HERE / "_ext"))


def digest_of_packages() -> str:
    """Return a digest of the code that the notebooks run, so that a change runs them again."""
    digest = hashlib.sha256()
    for package in ("geoprep", "loaders", "training", "benchmarks"):
        for path in sorted((REPO / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# Commands of the notebooks are those of this interpreter's environment.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
SOURCE = PROJECT["urls"]["Source"]
project = PROJECT["name"]
author = "The geoprep developers"
release = version = geoprep.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_click",
    "module_tables",
    "option_tables",
    "public_names",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_ext", "_static"]
templates_path = ["_templates"]
smartquotes = False  # options begin with two hyphens
default_role = "py:obj"

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "substitution"]
myst_heading_anchors = 4
myst_substitutions = {"github": f"[GitHub]({SOURCE})"}

nb_execution_mode = "cache"
CACHE = REPO / "build" / "docs-cache" / digest_of_packages()
for outdated in set(CACHE.parent.glob("*")) - {CACHE}:
    shutil.rmtree(outdated)
nb_execution_cache_path = str(CACHE)
nb_execution_timeout = 900
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

copybutton_prompt_text = r"\$ |>>> |\.\.\. |!"
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = f"geoprep {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "github_url": SOURCE,
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "show_nav_level": 1,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
