"""Test the wording of help texts, docstrings, messages and documents."""

import ast
import io
import re
import tokenize
from dataclasses import fields
from pathlib import Path

import click
import pytest

from geoprep.cli import cli

REPO = Path(__file__).resolve().parents[1]
PACKAGES = ("geoprep", "loaders", "training", "benchmarks")
FILES = sorted(path for package in PACKAGES for path in (REPO / package).rglob("*.py"))
DOCUMENTS = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]

# First words of texts that name no action or thing.
EMPTY_STARTS = ("Which", "How many", "How much", "Decides", "Of ", "Where ", "Whether it", "What ")

# Phrases of no standard term. Each has a plain equivalent in the vocabulary of the project.
PHRASES = (
    r"\bnobody\b",
    r"\bwhoever\b",
    r"\bwhom\b",
    r"\bshall\b",
    r"\bbeforehand\b",
    r"what (?:has |have )?becomes? of",
    r"\b(?:is|are|was|were|been) told\b",
    r"place on the ground",
    r"\bplain grid\b",
    r"\bcarr(?:y|ies|ied) on\b",
    r"\bgo(?:es)? on\b",
    r"\bmend(?:s|ed|ing)?\b",
    r"\bcrumbs?\b",
    r"\brehears(?:e|al)\b",
    r"\bstamps\b",
    r"\bsays? itself\b",
    r"\ba (?:tile|scene|second's) a (?:second|minute)\b",
)
PHRASE = re.compile("|".join(PHRASES), re.IGNORECASE)
# Python 3.12 divides f-strings into tokens of their own.
TEXT_TOKENS = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1))


def docstrings(path):
    """Yield line, text and whether it is public, of every docstring of a file."""
    tree = ast.parse(path.read_text())
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            name = getattr(node, "name", "")
            yield node.body[0].lineno, text, not name.startswith("_")


def texts(path):
    """Yield line and text of every comment and string of a file."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in TEXT_TOKENS:
            yield token.start[0], token.string


def sentences(path):
    """Yield place and text of every phrase that has a plainer equivalent."""
    lines = enumerate(path.read_text().split("\n"), start=1)
    for line, text in texts(path) if path.suffix == ".py" else lines:
        if PHRASE.search(text):
            yield f"{relative(path)}:{line}: {text[:120]}"


def relative(path):
    return str(path.relative_to(REPO))


@pytest.mark.parametrize(("name", "command"), cli.commands.items())
def test_every_option_of_geoprep_says_what_it_sets(name, command):
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            text = parameter.help or ""
            assert len(text.split()) > 1, f"geoprep {name} {parameter.opts[0]}: no help"
            assert not text.startswith(EMPTY_STARTS), f"geoprep {name} {parameter.opts[0]}: {text}"


def test_every_option_of_training_says_what_it_sets():
    from training import evaluate, export, predict, pretrain, settings

    found = 0
    for module in (settings, pretrain, evaluate, export, predict):
        for record in vars(module).values():
            if not hasattr(record, "__dataclass_fields__"):
                continue
            for one in fields(record):
                text = str(one.metadata.get("help", ""))
                if not text and one.name == "json_file":  # deprecated, absent from --help
                    continue
                if not one.metadata:
                    continue
                found += 1
                assert len(text.split()) > 1, f"{record.__name__}.{one.name}: no help"
                assert not text.startswith(EMPTY_STARTS), f"{record.__name__}.{one.name}: {text}"
    assert found > 40


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_docstrings_say_what_the_caller_gets(path):
    for line, text, public in docstrings(path):
        first = text.split("\n")[0]
        assert first.endswith((".", ":")), f"{relative(path)}:{line}: {first}"
        if public:
            assert not first.startswith(EMPTY_STARTS), f"{relative(path)}:{line}: {first}"
            assert len(first.split()) > 1, f"{relative(path)}:{line}: {first}"
        for entry in re.findall(r"\n    +(\S[^\n]*)", text):
            assert entry not in ("How many.", "Which.", "Which ones.", "All of it.", "Nowhere."), (
                f"{relative(path)}:{line}: {entry}"
            )


@pytest.mark.parametrize("path", [*FILES, *DOCUMENTS], ids=relative)
def test_texts_of_code_and_documents_use_plain_words(path):
    assert not list(sentences(path))


def test_no_class_name_stands_twice():
    places = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(relative(path))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice


def test_no_file_name_stands_three_times():
    places = {}
    for path in FILES:
        if not path.stem.startswith("__"):
            places.setdefault(path.name, []).append(relative(path))
    often = {name: where for name, where in places.items() if len(where) > 2}
    assert not often
