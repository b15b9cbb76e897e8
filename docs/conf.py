"""The site: `make docs`."""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util.logging import getLogger

from torchmetrics_fed import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

project = "torchmetrics-fed"
version = release = __version__
html_title = f"{project} {version}"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["developers"]  # for contributors, read in the repository
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sourcelink = False
html_math_renderer = "mathml"  # browsers draw it themselves: no script, no network
pygments_style = "friendly"
pygments_dark_style = "monokai"

# Where the project lives, as `[project.urls]` in pyproject.toml says; without an address, pages
# have no edit links. The version is in the title. A version switcher would be a template in
# `html_sidebars`, after "sidebar/brand.html", that lists the builds beside this one.
_project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())[
    "project"
]
_urls = _project.get("urls", {})
# the forges that Furo knows
_forges = ("https://github.com/", "https://gitlab.com/", "https://bitbucket.org/")
_source = next((url for url in _urls.values() if url.startswith(_forges)), "")
html_theme_options: dict[str, Any] = {"navigation_with_keys": True}
if _source:
    html_theme_options |= {
        "source_repository": _source,
        "source_branch": "main",
        "source_directory": "docs/",
    }

# Trainers that are not installed are stood in for: their pages are then made from docstrings alone.
autodoc_mock_imports = [
    name for name in ("flwr", "lightning", "nvflare", "declearn", "pfl") if find_spec(name) is None
]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True
nb_execution_in_temp = True  # what they save is not for docs/

copybutton_selector = (
    ":not(.highlight-text):not(.output) > div.highlight > pre"  # code, not what it prints
)
copybutton_exclude = ".linenos, .gp, .go"


def formula(translator: Any, node: Any) -> None:
    """Write a formula as MathML; what could not be converted is a warning."""
    block = isinstance(node, nodes.math_block)
    mathml = convert(node.astext(), display="block" if block else "inline")
    if re.search(r"\\|&(?!#x)", mathml):  # a command that is not known stays as it is
        getLogger(__name__).warning("a formula is not understood: %s", node.astext(), location=node)
    tag = "div" if block else "span"
    translator.body.append(
        translator.starttag(node, tag, "", CLASS="math notranslate") + mathml + f"</{tag}>"
    )
    raise nodes.SkipNode


def is_numbered(
    app: Any, kind: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out fields of named tuples that say no more than their number."""
    text = getattr(member, "__doc__", None) or ""
    if text.startswith("Alias for field number"):
        return True
    return None


def notebook(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Put the executed notebook of a page beside it, and a link to it below the page's title."""
    executed = Path(app.env.mystnb_config.output_folder, f"{page}.ipynb")
    if doctree is None or not executed.exists():
        return
    copy = Path(app.outdir, f"{page}.ipynb")
    copy.parent.mkdir(parents=True, exist_ok=True)
    content = json.loads(executed.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            # away from the site, links to its other pages lead nowhere
            cell["source"] = re.sub(
                r"\[([^\]]+)\]\((?![a-z]+:|#)[^)\s]+\)", r"\1", "".join(cell["source"])
            )
    copy.write_text(json.dumps(content, indent=1), encoding="utf-8")
    link = f'<p class="notebook"><a href="{copy.name}" download>Download this notebook</a></p>'
    context["body"] = context["body"].replace("</h1>", f"</h1>\n{link}", 1)


def setup(app: Any) -> None:
    """Add to Sphinx what is above."""
    app.connect("autodoc-skip-member", is_numbered)
    app.connect("html-page-context", notebook)
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
