"""The site: `make docs`."""

import re
from importlib.util import find_spec
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util.logging import getLogger

from torchmetrics_fed import __version__

project = "torchmetrics-fed"
version = release = __version__
html_title = f"{project} {version}"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_static_path: list[str] = []
html_show_copyright = False
html_math_renderer = "mathml"  # browsers draw it themselves: no script, no network

# Trainers that are not installed are stood in for: their pages are then made from docstrings alone.
autodoc_mock_imports = [name for name in ("flwr", "lightning", "nvflare", "declearn", "pfl") if find_spec(name) is None]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True


def formula(translator: Any, node: Any) -> None:
    """Write a formula as MathML; what could not be converted is a warning."""
    block = isinstance(node, nodes.math_block)
    mathml = convert(node.astext(), display="block" if block else "inline")
    if re.search(r"\\|&(?!#x)", mathml):  # a command that is not known stays as it is
        getLogger(__name__).warning("a formula is not understood: %s", node.astext(), location=node)
    tag = "div" if block else "span"
    translator.body.append(translator.starttag(node, tag, "", CLASS="math notranslate") + mathml + f"</{tag}>")
    raise nodes.SkipNode


def is_numbered(app: Any, kind: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out fields of named tuples that say no more than their number."""
    return True if (getattr(member, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app: Any) -> None:
    """Add to Sphinx what is above."""
    app.connect("autodoc-skip-member", is_numbered)
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
