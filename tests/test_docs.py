"""Test that commands, options, names and variables on the documentation's pages exist."""

import re
import shlex
import sys
from functools import cache
from pathlib import Path

import click
import pytest
from helpers.exports import public_names

from geoprep.cli.commands import cli

REPO = Path(__file__).resolve().parents[1]
DOCS = REPO / "docs"
PAGES = [REPO / "README.md", *sorted(DOCS.rglob("*.md"))]
sys.path.append(str(DOCS / "_ext"))
FENCE = re.compile(r"^(`{3,}|:{3,})[{]?(console|bash|code-cell)\b[^\n]*\n(.*?)^\1", re.M | re.S)


def commands(text):
    """Yield the commands of a page: console blocks, and lines of notebooks that begin with !."""
    for _, kind, body in FENCE.findall(text):
        mark = {"console": "$ ", "code-cell": "!"}.get(kind, "")
        for line in body.replace("\\\n", " ").splitlines():
            if line.startswith(mark) and line.strip():
                yield line.removeprefix(mark)


def words_of(command):
    """Return the words of a command up to a comment, a pipe or the next command."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if set(word) <= set("();<>|&") and word:
            break
        words.append(word)
    return words


@cache
def options_of(program, name):
    """Return the options of a command, read from its declaration; None if there is no such one."""
    if program == "geoprep":
        program = click.Context(cli, **cli.context_settings)
        command = cli if name.startswith("-") else cli.get_command(program, name)
        if command is None:
            return None
        with command.make_context(name, [], program, resilient_parsing=True) as context:
            options = context.command.get_params(context)
            return {o for p in options for o in (*p.opts, *p.secondary_opts)}
    from option_tables import BENCHMARKS, TRAINING, sections_of, settings_of

    if name not in {"training": TRAINING.values(), "benchmarks": BENCHMARKS}[program]:
        return None
    flags = {one.flag for part in sections_of(program, name) for one in settings_of(part).values()}
    return flags | {"--help", "--help-all"} | ({"--config"} if program == "training" else set())


def problem(command):
    """Return what is wrong with a command of this project; None for other programs."""
    words = words_of(command)
    while words and re.fullmatch(r"\w+=\S*", words[0]):
        words.pop(0)
    if words[:1] == ["make"]:
        targets = re.findall(r"^([\w%-]+(?: [\w%-]+)*):", (REPO / "Makefile").read_text(), re.M)
        known = {name for line in targets for name in line.split()}
        wrong = [w for w in words[1:] if "=" not in w and w not in known and "wheel-3" not in w]
        return f"no target {wrong[0]}" if wrong else None
    if words[:1] == ["geoprep"]:
        program, name, rest = "geoprep", words[1] if len(words) > 1 else "", words[1:]
    elif "-m" in words and words[words.index("-m") + 1].startswith(("training.", "benchmarks.")):
        at = words.index("-m") + 1
        program, name = words[at].split(".", 1)
        rest = words[at + 1 :]
    else:
        return None
    options = options_of(program, name)
    if options is None:
        return f"no command {program} {name}"
    given = {word.split("=")[0] for word in rest if word.startswith("--")}
    unknown = sorted(given - options)
    return f"no option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
@pytest.mark.usefixtures("entry_points")
def test_commands_and_options_on_a_page_exist(page):
    found = [(command, problem(command)) for command in commands(page.read_text("utf-8"))]
    assert not [f"{command}: {wrong}" for command, wrong in found if wrong]


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("geoprep build-zarr --no-such-option", "no option --no-such-option"),
        ("geoprep bild-zarr", "no command geoprep bild-zarr"),
        ("geoprep fit a.zarr --epocs 3 | tee log", "no option --epocs"),
        ("python -m training.fit a.zarr --epocs 3 | tee log", "no option --epocs"),
        ("python -m benchmarks.roads --quik", "no option --quik"),
        ("make dokumentation", "no target dokumentation"),
        ("geoprep info moscow.zarr && ls --all", None),
        ("pip install --quiet .", None),
    ],
)
@pytest.mark.usefixtures("entry_points")
def test_wrong_commands_are_found(command, wrong):
    assert problem(command) == wrong


@pytest.mark.parametrize("package", ["geoprep", "loaders", "training"])
def test_every_public_name_is_on_its_reference_page(package):
    text = (DOCS / "reference" / f"api-{package}.md").read_text()
    blocks = re.findall(rf"```{{public-names}} {package}\n(.*?)```", text, re.S)
    listed = [name for block in blocks for name in block.split()]
    public = set(public_names(REPO / package / "__init__.py")) - {"__version__"}
    assert not public - set(listed), f"add them to docs/reference/api-{package}.md"
    assert not set(listed) - public


def test_every_variable_that_the_code_reads_is_on_the_page_of_variables():
    page = (DOCS / "reference" / "environment.md").read_text()
    read = re.compile(
        r'environ(?:\.get|\.setdefault)?[\[(]\s*"([A-Z_]+)"|"([A-Z_]+)" (?:not )?in os.e'
    )
    named = re.compile(r'"((?:AWS|GOOGLE|GEOPREP)_[A-Z0-9_]+)"')
    variables = set()
    for package in ("geoprep", "loaders", "training"):
        for path in (REPO / package).rglob("*.py"):
            text = path.read_text()
            variables |= {a or b for a, b in read.findall(text)} | set(named.findall(text))
    assert len(variables) > 15
    assert not [name for name in sorted(variables) if f"`{name}`" not in page]


def test_every_package_is_in_the_layers_of_the_architecture():
    page = (DOCS / "explanation" / "architecture.md").read_text()
    layers = page.partition("From the top:")[2].partition("\n- ")[0]
    packages = {path.parent.name for path in REPO.glob("geoprep/*/__init__.py")}
    assert packages == set(re.findall(r"`(\w+)`", layers)) - {"geoprep"}


def test_the_list_of_modules_has_a_sentence_for_each():
    from module_tables import module_rows

    rows = {name: dict(modules) for name, modules in module_rows()}
    assert rows["geoprep.roads.scoring"]["apls"].startswith("APLS: similarity of two road networks")
    assert not [m for modules in rows.values() for m, text in modules.items() if len(text) < 15]


def test_tests_that_pages_name_exist():
    named = {
        name for page in PAGES for name in re.findall(r"`([\w/]+/test_\w+\.py)", page.read_text())
    }
    assert len(named) > 30
    assert not [
        name for name in named if not (REPO / "tests" / name.removeprefix("tests/")).is_file()
    ]


def test_every_page_of_a_section_is_in_its_table_of_contents():
    for index in sorted(DOCS.glob("*/index.md")):
        tree = "".join(re.findall(r"```\{toctree\}\n(.*?)```", index.read_text(), re.S))
        pages = {page.stem for page in index.parent.glob("*.md")} - {"index"}
        missing = pages - set(tree.split())
        assert "*" in tree.split() or not missing, f"{index}: {sorted(missing)}"


def test_pages_state_the_measured_rate_of_loaders():
    """The table of the newest run is the source of the figure on every other page."""
    table = (DOCS / "performance" / "loaders.md").read_text()
    (rate,) = re.findall(r"^\| ours: BatchLoader \| ([\d,]+) ", table, re.M)
    pattern = r"have \*\*([\d.]+)\*\* .* times the rate of the fastest other"
    ratio = float(re.findall(pattern, table)[0])
    for page in ("explanation/offline-uint8", "explanation/when-not-to-use"):
        assert rate in (DOCS / f"{page}.md").read_text(), page
    for path in (REPO / "README.md", DOCS / "explanation" / "when-not-to-use.md"):
        assert f"{ratio:.1f} times" in path.read_text(), path


def test_documented_code_reads_a_store_without_this_package(tmp_path, python):
    import geoprep as gp

    gp.synthesize("moscow", scenes=2, size=64, seed=1, out=tmp_path / "data", progress=False)
    store = tmp_path / "moscow.zarr"
    gp.build_zarr("moscow", source=tmp_path / "data", tile=64, val=0, out=store, progress=False)
    page = (DOCS / "reference" / "store-format.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    code = f"import sys\nsys.modules['geoprep'] = None\n{code.replace('650', '64')}"
    code += "print(name, image.shape, label.shape)\n"
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout == "AOI_7_Moscow_chip0 (64, 64, 3) (64, 64)\n", done.stderr
