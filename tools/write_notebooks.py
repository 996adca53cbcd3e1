"""Write the notebooks as pages of the site, with their output and their pictures.

    python tools/write_notebooks.py                        # all notebooks; takes minutes, less with CI=1 in the environment
    python tools/write_notebooks.py quickstart gradients   # two notebooks
    python tools/write_notebooks.py --no-execute           # text and code only

The pages go to `docs/notebooks/`, which git ignores. mkdocs runs `on_config` of this file: the site has a chapter of notebooks
if the pages have been written, and no such chapter otherwise. Needs `pip install '.[notebooks]'`.
"""

import argparse
import pathlib
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
PAGES = ROOT / "docs" / "notebooks"
BEFORE = "Concepts"  # chapter of the site that follows the notebooks


def on_config(config: Any) -> Any:
  """Add the pages that have been written to the navigation. mkdocs calls this function."""
  docs = pathlib.Path(config["docs_dir"])
  pages = sorted(x.relative_to(docs).as_posix() for x in (docs / PAGES.name).glob("*.md"))
  if pages:
    chapters = [next(iter(x)) for x in config["nav"]]
    config["nav"].insert(chapters.index(BEFORE), {"Notebooks": pages})
  return config


def write(notebook: pathlib.Path, execute: bool) -> None:
  """Write one notebook as a page, and its pictures beside the page."""
  import nbformat
  from nbclient import NotebookClient
  from nbconvert import MarkdownExporter

  node = nbformat.read(notebook, as_version=4)
  if execute:
    folder = {"metadata": {"path": str(notebook.parent)}}
    NotebookClient(node, timeout=None, kernel_name="python3", resources=folder).execute()
  for cell in node.cells:
    if cell.cell_type == "code":  # progress bars go to stderr
      cell.outputs = [x for x in cell.outputs if execute and x.get("name") != "stderr"]
  names = {"unique_key": notebook.stem, "output_files_dir": f"{notebook.stem}_files"}
  text, resources = MarkdownExporter().from_notebook_node(node, names)
  PAGES.mkdir(exist_ok=True)
  for name, content in resources["outputs"].items():
    picture = PAGES / name
    picture.parent.mkdir(exist_ok=True)
    picture.write_bytes(content)
  (PAGES / f"{notebook.stem}.md").write_text(text)


def main() -> None:
  """Write the notebooks that the command line names, or all."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  every = sorted(x.stem for x in NOTEBOOKS.glob("*.ipynb"))
  parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(every)}; default: all")
  parser.add_argument("--no-execute", action="store_true", help="write text and code only")
  args = parser.parse_args()
  if unknown := set(args.names) - {*every}:
    parser.error(f"no notebook is called {', '.join(sorted(unknown))}: choose from {', '.join(every)}.")
  for name in args.names or every:
    print(name, flush=True)
    write(NOTEBOOKS / f"{name}.ipynb", not args.no_execute)


if __name__ == "__main__":
  main()
