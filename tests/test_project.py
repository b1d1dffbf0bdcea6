"""The files around the package agree with each other and with it: pages, notebooks, README, versions, dependencies."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import papermill
import pytest
import yaml

import vitplast
from vitplast import parameters

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

# Home, root and scratch folders, on Unix and on Windows; system folders such as those of apt packages are fine.
MACHINE_PATH = re.compile(
    r"(?<![\w.:/-])/(?:home|Users|root|work|farm|tmp/[a-z]|var/folders)(?:/[\w.-]|\b(?=[\"'`\s]))|\b[A-Z]:\\Users"
)


@cache
def project_files() -> tuple[Path, ...]:
    """Files that are or could be committed."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listing = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split("\0")
        files = [ROOT / name for name in listing if name]
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive: no git, and nothing built yet
        made = {".venv", "_build", "results", "build", "dist"}
        files = [
            p for p in ROOT.rglob("*") if p.relative_to(ROOT).parts[0] not in made and "__pycache__" not in p.parts
        ]
    return tuple(p for p in files if p.is_file())


def code_cells(path: Path) -> list[dict]:
    return [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]


def readme_commands(program: str) -> list[list[str]]:
    """Words after `program` of each of its command lines in the README's code blocks."""
    blocks = re.findall(r"^```(?:bash|sh|console)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    found = [words[1:] for words in commands if words and words[0] == program]
    assert found, f"the README shows no {program} command"
    return found


# Pages and notebooks


def toc_entries(node: object) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(toc_entries, node))
    if not isinstance(node, dict):
        return set()
    own = {re.sub(r"\.(md|ipynb)$", "", node[key]) for key in ("root", "file") if key in node}
    return own.union(*map(toc_entries, node.values()))


def test_every_page_and_notebook_is_in_the_table_of_contents():
    toc = toc_entries(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
    found = [p for pattern in ("book/**/*.md", "book/**/*.ipynb", "notebooks/*.ipynb") for p in ROOT.glob(pattern)]
    pages = {
        p.relative_to(ROOT).with_suffix("").as_posix()
        for p in found
        if not p.name.startswith("_") and ".ipynb_checkpoints" not in p.parts
    }
    assert toc == pages


#: Packages of which every module is in the API reference.
DOCUMENTED = (
    "analysis", "cost", "criteria", "figures_paper", "layouts", "rehearsal", "results", "runs", "texts", "training",
    "workflow",
)  # fmt: skip


def test_the_api_reference_has_every_module_of_the_public_packages_and_no_other():
    text = (ROOT / "book" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. automodule:: (\S+)$", text, re.MULTILINE)
    assert listed == re.findall(r"^## (\S+)$", text, re.MULTILINE), "a heading for each, with its name"
    assert len(listed) == len(set(listed))
    files = {name: ROOT.joinpath(*name.split(".")) for name in listed}
    assert [
        n for n, f in files.items() if not f.with_suffix(".py").is_file() and not (f / "__init__.py").is_file()
    ] == []
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in DOCUMENTED
        for path in (ROOT / "vitplast" / package).glob("*.py")
    }
    assert modules - set(listed) == set()


def test_every_kind_of_parameters_has_its_notebook():
    assert {p.stem for p in NOTEBOOKS} == set(parameters.KINDS)


def test_statements_are_numbered_by_us_alone():
    """Sphinx would count them a second time; so no directive has its number and every reference has a text."""
    for page in ROOT.glob("book/**/*.md"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"\{prf:ref\}`[^`<]*`", text), page.name
        for directive in re.findall(r"\{prf:(?!ref)[a-z]+\}[^\n]*\n((?::[^\n]*\n)*)", text):
            assert ":nonumber:" in directive, page.name


@pytest.mark.parametrize("kind", parameters.KINDS)
def test_notebook_parameters_equal_those_of_the_package(kind):
    path = ROOT / "notebooks" / f"{kind}.ipynb"
    tagged = [c for c in code_cells(path) if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1
    written = [
        (p["name"], p["inferred_type_name"], ast.literal_eval(p["default"]), p["help"])
        for p in papermill.inspect_notebook(str(path)).values()
    ]
    known = [
        (f.name, f.type, f.default_factory() if f.default is dataclasses.MISSING else f.default, f.metadata["help"])
        for f in dataclasses.fields(parameters.KINDS[kind])
    ]
    # repr, since 1 == 1.0 == True
    assert list(map(repr, written)) == list(map(repr, known))


@pytest.mark.parametrize("kind", parameters.KINDS)
def test_notebooks_are_stripped(kind):
    path = ROOT / "notebooks" / f"{kind}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert not [c["source"] for c in code_cells(path) if c["outputs"] or c["execution_count"] is not None]
    assert set(notebook["metadata"]) <= {"kernelspec", "language_info", "mystnb"}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"


# What is committed


def test_machine_path_is_recognised():
    places = ["/".join(("", "home", "ann", "x")), "/".join(("", "root", "x")), "C:\\" + "Users\\ann"]
    assert all(MACHINE_PATH.search(f"open('{place}')") for place in places)
    assert not any(MACHINE_PATH.search(text) for text in ("a/home/b", "docs.org/work/x", "../root/x", "/usr/share/x"))


def test_no_path_of_a_machine_in_any_file():
    found = []
    for path in project_files():
        text = path.read_bytes().decode("utf-8" if path.suffix != ".nc" else "latin-1", errors="ignore")
        found += [f"{path.relative_to(ROOT)}: {m.group()}" for m in MACHINE_PATH.finditer(text)]
    assert found == []


def test_no_large_file():
    results = [p.parent for p in (ROOT / "data").glob("*/manifest.json")]  # over 1,000 runs, exact and compressed
    weights = ROOT / "data" / "models"
    large = {
        p.relative_to(ROOT).as_posix(): p.stat().st_size
        for p in project_files()
        if p.stat().st_size > (10_000_000 if p.parent in results else 4_000_000 if p.parent == weights else 2_000_000)
    }
    assert large == {}


def test_committed_results_are_valid():
    from vitplast import results

    for path in sorted((ROOT / "data").rglob("*.nc")):
        results.read(path)


# Versions, citation, dependencies


def test_one_version_everywhere():
    changelog = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {vitplast.__version__, PROJECT["version"], str(CITATION["version"]), changelog[0]} == {vitplast.__version__}


def test_citation_names_the_software_and_the_paper():
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["license"] == PROJECT["license"]
    paper = CITATION["preferred-citation"]
    for entry in (CITATION, paper):
        assert entry["title"]
        assert entry["type"] in ("software", "conference-paper")
        assert all(author.keys() in ({"name"}, {"family-names", "given-names"}) for author in entry["authors"])
    assert CITATION["message"]
    assert paper["url"] == PROJECT["urls"]["Paper"]
    assert [a["family-names"] for a in paper["authors"]] == ["Odonnat", "Chapel", "Tavenard", "Redko"]


def requirement_name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", text).group()).lower()


def test_extra_all_holds_every_other_extra():
    extras = PROJECT["optional-dependencies"]
    (only,) = extras["all"]
    apart = {"all", "cluster"}  # Snakemake asks for other versions of what the book needs: an environment of its own
    assert set(re.fullmatch(r"vitplast\[(.*)\]", only).group(1).split(",")) == set(extras) - apart


def test_every_import_of_the_package_is_a_declared_dependency():
    extras = PROJECT["optional-dependencies"]
    optional = ("weights", "lora", "transformers", "images", "book")
    required = [*PROJECT["dependencies"], *(r for name in optional for r in extras[name])]
    declared = {requirement_name(r) for r in required}
    of_module = metadata.packages_distributions()
    undeclared = set()
    for path in (ROOT / "vitplast").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            for module in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"vitplast"}:
                if not declared & {requirement_name(d) for d in of_module.get(module, [module])}:
                    undeclared.add(f"{path.relative_to(ROOT)}: {module}")
    assert undeclared == set()


# Commands


def test_make_lists_its_targets_and_the_readme_names_only_those():
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    assert set(re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE).group(1).split()) == targets
    assert set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE)) == targets
    for words in readme_commands("make"):
        assert {w for w in words if "=" not in w} <= targets


def test_vitplast_commands_are_ones_the_program_takes():
    import typer

    from vitplast.cli import app

    commands = typer.main.get_command(app).commands
    examples = [line for c in commands.values() for line in re.findall(r"Example: vitplast (.+)", c.help or "")]
    assert len(examples) == len(commands)
    for name, *rest in readme_commands("vitplast") + [shlex.split(example) for example in examples]:
        assert name in commands
        context = commands[name].make_context(name, rest)
        assert not context.args


def papermill_value(text: str) -> object:
    """What `papermill -p name text` passes on: numbers, booleans and None are read, all else is text."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
    return value if isinstance(value, bool | int | float | None) else text


def test_papermill_commands_of_the_readme_pass_the_check():
    from papermill.cli import papermill as program

    for words in readme_commands("papermill"):
        given = program.make_context("papermill", words).params
        values = {name: papermill_value(text) for name, text in given["parameters"]}
        for text in given["parameters_yaml"]:
            values |= yaml.safe_load(text)
        notebook = ROOT / given["notebook_path"]
        assert notebook in NOTEBOOKS
        parameters.make(notebook.stem, values)


def test_gate_runs_the_two_commands_of_the_readme():
    gate = ROOT / ".ci" / "run"
    steps = re.findall(r"^step (.+)$", gate.read_text(encoding="utf-8"), re.MULTILINE)
    assert steps == ["make test", "make book"]
    assert [step.split()[1:] for step in steps] == sorted(readme_commands("make")[:2], reverse=True)
    assert gate.stat().st_mode & 0o111
