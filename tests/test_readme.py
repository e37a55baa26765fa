"""README's Python runs as it is written."""

import pathlib
import re

import jax
import pytest

README = (pathlib.Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def _block(word):
    (found,) = [text for text in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if word in text]
    return found


def test_your_own_agent():
    names = {}
    exec(_block("make_learner"), names)
    assert names["action"].shape == () and 0 <= int(names["action"]) < 3
    assert names["state"].count == 1 and names["metrics"]["losses"].shape == (32,)
    for expected, found in zip(
        jax.tree.leaves(names["learner"].init(jax.random.key(0))), jax.tree.leaves(names["state"]), strict=True
    ):
        assert expected.shape == found.shape


def test_in_a_bsuite_script():
    pytest.importorskip("bsuite")
    code, names = _block("bsuite.load_from_id").replace("problem.num_episodes", "3"), {}
    exec(code, names)
    assert names["online"].steps == 3 * 9


def test_every_file_it_links_to_is_there():
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    links = re.findall(r"\]\((?!http)([^)#]+)\)", prose)
    assert len(links) > 20
    for link in links:
        assert (pathlib.Path(__file__).parent.parent / link).exists(), link
