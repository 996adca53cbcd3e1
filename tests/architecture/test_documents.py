"""Documents are as short as they should be, what they name is there, and what is written from data is as the data are."""

import json
import pathlib
import re

import pytest
import write_docs
import write_notebooks
from test_english import PHRASES

ROOT = pathlib.Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks" / "README.md"
# pages of the site, without the notebooks that tools/write_notebooks.py writes
PAGES = [x for x in (ROOT / "docs").rglob("*.md") if x.parent != write_notebooks.PAGES]
DOCUMENTS = [*(ROOT / x for x in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), BENCHMARKS, *PAGES]
# besides the words of test_english.py
WORDS = ("held", "of those", "what is in it", "few", "several", "apart", "straight")


@pytest.mark.parametrize("part", write_docs.PARTS)
def test_what_is_written_from_tables_is_as_they_are(part):
  page, text = write_docs.PARTS[part]
  assert re.search(write_docs.marked(part), page.read_text(), re.S)[2] == text(), "run `python tools/write_docs.py`"


def test_every_line_of_differences_is_found():
  """A paragraph that is not at the beginning of its line would be left out silently."""
  lines = [x for file in (ROOT / "mjx_lite").rglob("*.py") for x in file.read_text().splitlines() if "Differs:" in x]
  assert len(lines) == len(write_docs.differences().splitlines())


def test_the_readme_is_short():
  """At most 700 words, as somebody reads who decides whether to go on."""
  assert len((ROOT / "README.md").read_text().split()) <= 700


def test_links_lead_somewhere():
  for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
      assert target.startswith("https://") or (page.parent / target).exists(), (page.name, target)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda x: x.relative_to(ROOT).as_posix())
def test_words_are_those_of_the_field(page):
  """As in docstrings; code and tables that a script writes do not count."""
  text = re.sub(r"^```.*?^```|<!-- (\w+): .*?<!-- end of \1 -->|`[^`]*`", "", page.read_text(), flags=re.S | re.M)
  found = re.search(rf"\b({'|'.join((*PHRASES, *WORDS))})\b", text, re.I)
  assert not found, f"'{found[0]}' in: {text[max(0, found.start() - 60) : found.end() + 60]}"


def test_every_page_is_in_the_site():
  site = (ROOT / "mkdocs.yml").read_text()
  for page in PAGES:
    assert page.relative_to(ROOT / "docs").as_posix() in site, page


def test_the_site_has_the_notebooks_that_have_been_written(tmp_path):
  nav = [{"Home": "index.md"}, {"Concepts": ["concepts/data.md"]}]
  config = {"docs_dir": str(tmp_path), "nav": [*nav]}
  assert write_notebooks.on_config(config)["nav"] == nav
  (tmp_path / "notebooks").mkdir()
  for name in ("quickstart.md", "gradients.md"):
    (tmp_path / "notebooks" / name).write_text("# Title")
  chapter = {"Notebooks": ["notebooks/gradients.md", "notebooks/quickstart.md"]}
  assert write_notebooks.on_config(config)["nav"] == [nav[0], chapter, nav[1]]


def test_notebooks_are_committed_without_outputs():
  for notebook in write_notebooks.NOTEBOOKS.glob("*.ipynb"):
    cells = json.loads(notebook.read_text())["cells"]
    assert not [x for x in cells if x.get("outputs")], notebook


def test_the_page_of_benchmarks_is_short():
  assert len(BENCHMARKS.read_text().splitlines()) <= 150


def test_every_file_that_a_page_of_benchmarks_names_is_there():
  folder = BENCHMARKS.parent
  for page in (BENCHMARKS, *folder.glob("reports/*.md")):
    for name in re.findall(r"`((?:\.\./|reports/|results/|log)[\w./*-]*)`", page.read_text()):
      assert list(page.parent.glob(name)), (page.name, name)


def test_files_that_documents_name_are_there():
  for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES):
    for name in re.findall(r"`((?:benchmarks|tests|tools|notebooks|docs)/[\w./]+)`", page.read_text()):
      assert (ROOT / name).exists(), (page.name, name)
