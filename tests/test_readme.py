"""README and docs: their Python runs as written, commands have flags that exist, links lead somewhere."""

import ast
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import jax
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "BUILD_NOTES.md", "CHANGELOG.md", "CONTRIBUTING.md", "results/README.md")
    ),
    *DOCS,
]
# A page by page parametrisation would start jax once per worker, so pages are looped over.
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


def _text(page):
    return page.read_text(encoding="utf-8")


def _blocks(page, language):
    return [code for name, code in FENCE.findall(_text(page)) if name == language]


def test_readmes_agent():
    (code,), names = _blocks(ROOT / "README.md", "python"), {}
    exec(code, names)
    assert names["action"].shape == () and 0 <= int(names["action"]) < 3
    assert names["state"].count == 1 and names["metrics"]["losses"].shape == (32,)
    for expected, found in zip(
        jax.tree.leaves(names["learner"].init(jax.random.key(0))), jax.tree.leaves(names["state"]), strict=True
    ):
        assert expected.shape == found.shape
    assert names["mean"].shape == (32, 3) and np.all(names["std"] > 0)


def test_getting_started(capsys):
    (code,), names = _blocks(ROOT / "docs" / "index.md", "python"), {}
    exec(code, names)
    assert names["mean"].shape == (2, 3) and np.all(names["std"] > 0)


def test_compose_it_into_your_agent(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    whole, loop, saving, _ = _blocks(ROOT / "docs" / "compose.md", "python")
    names = {}
    exec(whole, names)
    assert names["state"].count == 1 and names["mean"].shape == (32, 3)
    exec(loop.replace("1_600", "640"), names)
    assert "mean return by seed: [" in capsys.readouterr().out
    assert np.array_equal(names["metrics"].episodes, [20] * 4) and np.all(names["metrics"].returns <= 20 * 0.9901)
    exec(saving, names)
    assert (tmp_path / "agent.npz").is_file() and names["action"] in (0, 1)


def test_in_a_bsuite_script(capsys):
    pytest.importorskip("bsuite")
    code, names = _blocks(ROOT / "docs" / "compose.md", "python")[-1].replace("problem.num_episodes", "3"), {}
    exec(code, names)
    assert names["online"].steps == 3 * 9


def _anchors(page):
    """Anchors of the headings, as GitHub and the site make them."""
    prose = FENCE.sub("", _text(page))
    headings = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", line) for line in re.findall(r"^#+ (.*)$", prose, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere():
    count = 0
    for page in PAGES:
        for link in LINK.findall(re.sub(r"`[^`\n]*`", "", FENCE.sub("", _text(page)))):
            if link.startswith(("https://", "mailto:")):
                continue
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in _anchors(target), f"{page.name}: {link}"
            count += 1
    assert count > 150


def test_every_page_is_in_the_navigation():
    navigation = _text(ROOT / "mkdocs.yml").partition("\nnav:")[2]
    assert sorted(re.findall(r": (\w+\.md)$", navigation, re.MULTILINE)) == [page.name for page in DOCS]


# A child per script parses its commands with the flags it defines; nothing runs.
PARSE = """
import json, os, runpy, sys
sys.path.insert(0, "experiments")
import common
from absl import flags
from hyperagent_jax.experiment import cli, driver, sweep

def check(commands):
    def parse(main, names=()):
        shown = flags.FLAGS.main_module_help()
        for command in commands:
            try:
                flags.FLAGS.unparse_flags()
                rest = flags.FLAGS(command)[1:]
                used = {word[2:].partition("=")[0] for word in command if word.startswith("--")}
                forms = {x: (f"--{x}:", f"--[no]{x.removeprefix('no')}:") for x in used}
                hidden = [x for x, (one, other) in forms.items() if one not in shown and other not in shown]
                assert not hidden, f"--help does not list {hidden}"
                assert len(rest) == bool(names) and set(rest) <= set(names), f"commands are {names}"
                if "grid" in flags.FLAGS and (flags.FLAGS.grid or "").startswith(("{", "[", "results/")):
                    sweep.read(flags.FLAGS.grid)
            except Exception as error:
                print(" ".join(command), "->", error, flush=True)
    return parse

for script, commands in json.load(sys.stdin).items():
    child = os.fork()
    if child == 0:
        sys.argv = [script]
        cli.run = check(commands)
        runpy.run_path(script, run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(script, "failed")
"""


def _commands():
    """Yields the commands of all pages as lists of words, those in the text too."""
    for page in PAGES:
        for code in re.findall(
            r"`((?:[A-Z_]+=\S+ )*(?:python experiments/|make )[^`]+)`", FENCE.sub("", _text(page))
        ):
            if "<" not in code:  # a placeholder
                yield page.name, shlex.split(code.replace(" ...", ""))
        for block in _blocks(page, "bash"):
            pending = ""
            for line in block.splitlines():
                pending += line
                try:
                    words = shlex.split(pending.removesuffix("\\"), comments=True)
                except ValueError:  # inside quotes
                    pending += "\n"
                    continue
                if pending.endswith("\\"):
                    pending = pending.removesuffix("\\")
                    continue
                pending = ""
                if words:
                    yield page.name, words
            assert not pending, f"{page.name}: {pending}"


def test_every_command_has_flags_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", _text(ROOT / "Makefile"), re.MULTILINE))
    scripts = {}
    for page, words in _commands():
        words = words[next(i for i, word in enumerate(words) if "=" not in word or word.startswith("-")) :]
        if words[0] == "make":
            assert words[1] in targets, f"{page}: make {words[1]}"
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file(), f"{page}: {words[1]}"
            if words[1].startswith("experiments/"):
                scripts.setdefault(words[1], []).append(words[1:])
        else:
            assert words[0] in ("pip", "source"), f"{page}: {' '.join(words)}"
    assert sum(map(len, scripts.values())) > 40
    done = subprocess.run(
        [sys.executable, "-c", PARSE],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=json.dumps(scripts),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0 and not done.stdout, done.stdout + done.stderr


def test_no_public_name_is_undocumented():
    """An override may rely on the docstring of the method it overrides."""
    missing, documented = [], set()

    def visit(where, body, is_class=False):
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            if ast.get_docstring(node):
                documented.update({node.name} if is_class else ())
            else:
                missing.append((f"{where}.{node.name}", node.name if is_class else None))
            if isinstance(node, ast.ClassDef):
                visit(f"{where}.{node.name}", node.body, is_class=True)

    for path in sorted((ROOT / "hyperagent_jax").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), path
        visit(path.relative_to(ROOT).with_suffix(""), tree.body)
    assert not [where for where, method in missing if method not in documented]
