"""The site: `make docs`."""

from importlib.util import find_spec
from typing import Any

from torchmetrics_fed import __version__

project = "torchmetrics-fed"
version = release = __version__
html_title = f"{project} {version}"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_static_path: list[str] = []
html_show_copyright = False

# Trainers that are not installed are stood in for: their pages are then made from docstrings alone.
autodoc_mock_imports = [name for name in ("flwr", "lightning", "nvflare") if find_spec(name) is None]
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


def setup(app: Any) -> None:
    """Leave out fields of named tuples that say no more than their number."""

    def is_numbered(app: Any, kind: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
        return True if (getattr(member, "__doc__", None) or "").startswith("Alias for field number") else None

    app.connect("autodoc-skip-member", is_numbered)
