"""The site of ``make docs``: Sphinx, with MyST for Markdown and the theme furo.

The source directory is the repository itself, so a link between two pages is the same on the site and in a checkout.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent

FAMILIES = sorted(path.parent.name for path in ROOT.glob("csrc/kernels/*/NOTES.md"))

#: The pages of the navigation, by the heading above them.
NAVIGATION = {
    "Use": {
        "Quick start": "docs/quickstart",
        "Installation": "docs/installation",
        "What runs on these kernels": "docs/coverage",
        "Numerics": "docs/numerics",
        "Tuning": "docs/tuning",
        "torch.compile, CUDA graphs, distributed": "docs/compile",
        "Modules": "docs/modules",
        "As a kernel of the Hugging Face Hub": "docs/hub",
        "Functions, operators, explain": "docs/operators",
        "Commands and variables": "docs/reference",
        "Troubleshooting": "docs/troubleshooting",
    },
    "Measurements": {
        "Benchmarks": "docs/benchmarks",
        "How they are measured": "benchmarks/README",
        "Every result, H200": "benchmarks/results/h200/README",
        "Every result, H100": "benchmarks/results/h100-80gb-hbm3/README",
    },
    "The course": {
        "From a naive kernel to wgmma": "benchmarks/ladder",
        "Its kernels": "csrc/ladder/README",
    },
    "Develop": {
        "Contributing": "CONTRIBUTING",
        "The native code": "csrc/README",
        "Notes on kernels": "csrc/kernels/NOTES",
        **{family: f"csrc/kernels/{family}/NOTES" for family in FAMILIES},
        "Surprises in other packages": "findings/README",
        "Changelog": "CHANGELOG",
    },
}

project = "hgemm_ops"
extensions = ["myst_parser"]
root_doc = "README"
source_suffix = {".md": "markdown"}
include_patterns = [f"{page}.md" for pages in NAVIGATION.values() for page in pages.values()] + ["README.md"]
exclude_patterns = [".*", "build", "dist"]  # directories that need not be searched

html_theme = "furo"
html_title = "hgemm_ops"
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # fetching it is an error where the site is opened as files
myst_heading_anchors = 4  # as on GitHub
suppress_warnings = ["myst.header"]


def _prepare(app: Sphinx, name: str, source: list[str]) -> None:
    """Adds the navigation to README, and has links to a directory lead to the page in it."""
    if name == root_doc:
        for heading, pages in NAVIGATION.items():
            lines = "\n".join(f"{title} <{page}>" for title, page in pages.items())
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{lines}\n```\n"

    def to_page(link: re.Match[str]) -> str:
        directory = (ROOT / name).parent / link[1]
        page = next((page for page in ("README.md", "NOTES.md") if (directory / page).is_file()), "")
        return f"]({link[1]}/{page})" if directory.is_dir() and page else link[0]

    source[0] = re.sub(r"\]\(([^)#:]+)\)", to_page, source[0])


def _copy_index(app: Sphinx, failure: Exception | None) -> None:
    """Makes README the page that a browser shows for the directory."""
    if failure is None and app.builder.format == "html":
        shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    app.connect("source-read", _prepare)
    app.connect("build-finished", _copy_index)
