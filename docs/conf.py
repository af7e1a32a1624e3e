"""Sphinx configuration. `make docs` builds the site with it; the network is not needed."""

import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))
os.environ.setdefault("KERAS_BACKEND", "jax")

project = "keras_vit"
author = "the authors of keras_vit"
copyright = "the authors of keras_vit, Apache-2.0"
release = installed_version("keras3-vit")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "docs.tools.docstrings",
    "docs.tools.live_page",
    "docs.tools.pages",
    "docs.tools.transforms",
]
exclude_patterns = ["generated", "performance", "guides/*.py", "tools", "_*"]
templates_path = ["_templates"]
language = "en"
smartquotes = False  # options keep their two hyphens, and code its quotes
nitpicky = False  # Keras's own classes are not on this site

# Markdown pages, and guides whose outputs are committed: nothing is executed here.
myst_enable_extensions = ["colon_fence", "attrs_inline", "html_image"]
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "gfm"  # tables in outputs

# The reference is the docstrings: Google's style, with single backquotes for code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # those of Keras are on its own site
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
viewcode_line_numbers = True

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"keras_vit {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_js_files = ["versions.js"]
html_show_sphinx = False
html_copy_source = False
html_baseurl = ""
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
