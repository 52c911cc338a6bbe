"""The documentation site (`make docs`): the Markdown files of this folder, and references made from the code."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fedpac.version import __version__

project = "fedpac"
author = "The fedpac developers"
copyright = "The fedpac developers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "references"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # torch documents its modules itself
autodoc_default_options = {"exclude-members": "forward, model_config"}

html_theme = "furo"
html_title = "fedpac"
html_theme_options = {"sidebar_hide_name": False}
