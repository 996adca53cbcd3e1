"""Docstrings and comments are plain: words of a private vocabulary, which were taken out once, do not come back.

A word here is one that a reader whose second language is English looks up in vain, as the code means something else by it:
`told` for "given", `felt` for "within reach", `hangs on` for "depends on". What stands between backticks is code.
Identifiers have a list of their own.
"""

import ast
import io
import re
import tokenize

import pytest
from test_layers import modules, name_of

PHRASES = (
  r"who", r"told", r"felt", r"hangs? on", r"of its own accord", r"makes? of (it|that|what)", r"what it makes", r"is apart",
  r"the others", r"of those that", r"what is of", r"of such", r"in its turn", r"so many", r"says? so",
)  # fmt: skip

# parts of identifiers: pronouns and private words in places where a noun says what a thing is
PARTS = frozenset((
  "who", "told", "felt", "held", "apart", "way", "few", "several", "its", "others", "handed", "goes", "how", "mine", "taken",
))  # fmt: skip


def texts(path):
  """Docstrings and comments of a file, without code between backticks."""
  source = path.read_text()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
      yield ast.get_docstring(node) or ""
  yield from (t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT)


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_words_are_those_of_the_field(path):
  for text in texts(path):
    found = re.search(rf"\b({'|'.join(PHRASES)})\b", re.sub(r"`[^`]*`", "", text))
    assert not found, f"'{found[0]}' in: {text[max(0, found.start() - 60) : found.end() + 60]}"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_identifiers_are_nouns(path):
  for t in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
    if t.type == tokenize.NAME:
      parts = {x.lower() for x in re.split(r"_|(?<=[a-z])(?=[A-Z])", t.string)}
      assert not parts & PARTS, f"{name_of(path)}:{t.start[0]} {t.string}"
