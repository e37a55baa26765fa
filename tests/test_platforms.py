"""The main programs lower for GPUs and TPUs, without what those cannot do or do slowly."""

import re

import jax
from jax import export
import pytest

from hyperagent_jax import agents
from hyperagent_jax.agents import atari_presets
from hyperagent_jax.experiment import programs
from hyperagent_jax.tabular import agents as tabular_agents

PLATFORMS = ("cuda", "rocm", "tpu")
PROGRAMS = {
    "hyperagent": lambda: programs.deep_sea_chunk("hyperagent", 8, 2),
    "hyperagent_lazy_adam": lambda: programs.deep_sea_chunk("hyperagent", 8, 2, optimizer="lazy_adam"),
    "hyperagent_prioritized": lambda: programs.deep_sea_chunk("hyperagent_prioritized", 8, 2),
    "hypermodel": lambda: programs.deep_sea_chunk("hypermodel", 8, 2),
    "enndqn": lambda: programs.deep_sea_chunk("enndqn", 8, 2),
    "atari_update": lambda: programs.atari_update("hyperagent", "released"),  # with a gradient penalty
    "atari_act": lambda: programs.atari_act("hyperagent"),
    **{f"tabular_{name}": lambda name=name: programs.tabular(name, 2, 4) for name in ("hyperagent", "psrl")},
}
# Writes in place: a transition's six arrays, in random and in learning steps; lazy Adam's rows and their ages; the
# tree of priorities, of three levels, in both kinds of steps and in updates: leaves twice on a GPU, once on a TPU.
# In updates its top is summed instead.
SETS = {"hyperagent": 2 * 6, "hyperagent_lazy_adam": 2 * 6 + 2, "hyperagent_prioritized": 2 * (6 + 5) + 4}


def scatters(text: str) -> list[str]:
    """How every scatter of a program in StableHLO combines: "set", "add", "maximum"."""
    bodies = re.findall(r'"stablehlo\.scatter"\(.*?\}\) :', text, re.DOTALL)
    found = [re.findall(r"stablehlo\.(add|maximum|multiply) ", body) for body in bodies]
    return [one[0] if one else "set" for one in found]


def lowered(program: programs.Program) -> str:
    """A program in StableHLO for all platforms, without what none of them can do or does well."""
    text = export.export(program.jitted(), platforms=PLATFORMS)(*program.arguments).mlir_module()
    assert "stablehlo.custom_call" not in re.sub(r"stablehlo.custom_call @(Sharding|SPMD\w+)", "", text)  # no host
    assert not re.search(r"xf64|tensor<f64|tensor<[\dx]*\?", text)  # no double precision, no unknown sizes
    return text


@pytest.mark.parametrize("name", PROGRAMS)
def test_lowers_for_accelerators(name):
    text = lowered(PROGRAMS[name]())
    if name.startswith("tabular"):
        return
    # A TPU runs a scatter-add one row after the other, and a GPU in any order.
    assert "add" not in scatters(text)
    if name in SETS:
        assert len(scatters(text)) == SETS[name]


def repeated_adds(text: str) -> list[str]:
    """The scatter-adds of a program of more than one window, which may add to a place twice, in any order."""
    found = re.findall(r'"stablehlo\.scatter"\(.*?\}\) : \(.*?\)', text, re.DOTALL)
    adds = [one for one in found if "stablehlo.add " in one]
    windows = [re.findall(r"\d+", "".join(re.findall(r"update_window_dims = (\[.*?\])", one))) for one in adds]
    ranks = [re.findall(r"tensor<([^>]*)>", one)[-1].count("x") for one in adds]
    return [one for one, window, rank in zip(adds, windows, ranks, strict=True) if len(window) < rank]


def test_repeated_adds_are_found():
    @jax.jit
    def add(x, i):
        return x.at[i].add(1.0), x.at[0].add(1.0)

    text = add.lower(jax.numpy.zeros(5), jax.numpy.array([1, 1])).as_text()
    assert scatters(text) == ["add", "add"] and len(repeated_adds(text)) == 1


OTHERS = {f"deepsea_{name}": lambda name=name: programs.deep_sea_chunk(name, 6, 2) for name in agents.CONFIGS}
OTHERS |= {f"tabular_{name}": lambda name=name: programs.tabular(name, 2, 4) for name in tabular_agents.AGENTS}
OTHERS |= {
    f"atari_{name}_{kind.__name__}": lambda name=name, kind=kind: kind(name)
    for name in atari_presets.configs("paper")
    for kind in (programs.atari_update, programs.atari_act)
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_every_agent_lowers_for_accelerators(name):
    text = lowered(OTHERS[name]())
    if not name.startswith("tabular"):  # an episode's counts are one per stage, so no two add to the same place
        assert not repeated_adds(text)


def test_the_gradient_of_a_look_up_is_a_scatter_on_cpu_alone():
    program = PROGRAMS["hyperagent"]()
    text = program.jitted().lower(*program.arguments).as_text()
    assert jax.default_backend() != "cpu" or scatters(text).count("add") == 1
