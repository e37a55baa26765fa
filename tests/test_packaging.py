"""What setup.py promises: its bounds, the lock, and a core that imports without the extras."""

import ast
import os
import pathlib
import runpy
import subprocess
import sys
import types

from packaging import requirements
from packaging import utils
from packaging import version
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "hyperagent_jax"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Modules of the extras, which the core must do without.
OPTIONAL = ("bsuite", "envpool", "gymnasium", "matplotlib", "pandas", "ray", "submitit", "tensorboardX")


@pytest.fixture(scope="module")
def setup_arguments():
    """What setup.py passes to setuptools, which need not be installed."""
    arguments = {}
    stub = types.ModuleType("setuptools")
    stub.setup = arguments.update
    stub.find_packages = lambda include: include
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "setuptools", stub)
        runpy.run_path(str(ROOT / "setup.py"))
    return arguments


@pytest.fixture(scope="module")
def lock():
    """Package names and versions of requirements.txt."""
    pinned = {}
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            requirement = requirements.Requirement(line)
            (specifier,) = requirement.specifier
            assert specifier.operator == "==" and requirement.url is None
            pinned[utils.canonicalize_name(requirement.name)] = version.Version(specifier.version)
    return pinned


# Extras that tests do not need: compilers of hundreds of megabytes.
COMPILERS = {"aot-tpu", "aot-cuda"}


def all_requirements(arguments):
    extras = [lines for name, lines in arguments["extras_require"].items() if name not in COMPILERS]
    lines = [*arguments["install_requires"], *sum(extras, [])]
    return [requirements.Requirement(line) for line in lines]


def imported(path, *, inside_functions):
    """Names of the packages that a file imports; without `inside_functions`, on being imported itself."""
    names, nodes = set(), [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not inside_functions:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
        nodes.extend(ast.iter_child_nodes(node))
    return names


def core_modules():
    """Names of all modules but those that draw and those that exist to wrap an optional package."""
    for path in MODULES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        if {"analysis", "paper"}.isdisjoint(parts) and imported(path, inside_functions=False).isdisjoint(OPTIONAL):
            yield ".".join(parts).removesuffix(".__init__")


def test_version_is_that_of_the_package(setup_arguments):
    import hyperagent_jax

    assert setup_arguments["version"] == hyperagent_jax.__version__
    assert str(version.Version(setup_arguments["version"])) == setup_arguments["version"]


def test_license_is_named_and_there(setup_arguments):
    assert setup_arguments["license"] == "Apache-2.0"
    (name,) = setup_arguments["license_files"]
    assert "Apache License" in (ROOT / name).read_text(encoding="utf-8")
    assert "license: Apache-2.0" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_citation_and_changelog_name_the_version(setup_arguments):
    version_line = f"version: {setup_arguments['version']}"
    assert version_line in (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"## {setup_arguments['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_requirements_have_a_lower_bound(setup_arguments):
    for requirement in all_requirements(setup_arguments):
        assert ">=" in {specifier.operator for specifier in requirement.specifier}, requirement


def test_core_requirements_have_a_cap(setup_arguments):
    for line in setup_arguments["install_requires"]:
        operators = {specifier.operator for specifier in requirements.Requirement(line).specifier}
        assert operators == {">=", "<"}, line


def test_extras_stay_out_of_the_core(setup_arguments):
    core = {requirements.Requirement(line).name for line in setup_arguments["install_requires"]}
    assert core.isdisjoint(OPTIONAL)


def test_dev_extra_holds_all_others(setup_arguments):
    extras = {name: x for name, x in setup_arguments["extras_require"].items() if name not in COMPILERS}
    assert set(extras) == {
        "bsuite",
        "gymnasium",
        "atari",
        "sweep",
        "gymnax",
        "pgx",
        "navix",
        "ray",
        "slurm",
        "tensorboard",
        "docs",
        "dev",
    }
    for lines in extras.values():
        assert set(lines) <= set(extras["dev"])


def test_lock_satisfies_every_bound(setup_arguments, lock):
    for requirement in all_requirements(setup_arguments):
        pinned = lock[utils.canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pinned, prereleases=True), (requirement, pinned)


def test_lock_names_no_host_and_no_folder():
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    assert "://" not in text and " /" not in text and "--index-url" not in text


def test_core_imports_without_the_extras():
    names = list(core_modules())
    assert {"hyperagent_jax", "hyperagent_jax.learner", "hyperagent_jax.runners"} <= set(names)
    block = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))"
    # rlax takes as long to import as all else but jax, and only the categorical losses use it.
    last = "assert not {'rlax', 'distrax'} & set(sys.modules)"
    code = "\n".join([block, *(f"import {name}" for name in names), last])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["bsuite", "envpool", "gymnasium", "ray", "submitit"])
def test_optional_package_is_imported_in_one_module_at_most(name):
    """The analysis, which imports no jax, may have one of its own."""
    importers = [path for path in MODULES if name in imported(path, inside_functions=True)]
    of_analysis = [path for path in importers if "analysis" in path.relative_to(PACKAGE).parts]
    assert len(of_analysis) <= 1 and len(importers) - len(of_analysis) <= 1, importers
