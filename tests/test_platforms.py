"""The main programs lower for GPUs and TPUs, without what those cannot do or do slowly."""

import re

import jax
from jax import export
import pytest

from hyperagent_jax.experiment import programs

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
SETS = {"hyperagent": 2 * 6, "hyperagent_lazy_adam": 2 * 6 + 2, "hyperagent_prioritized": 2 * (6 + 5) + 5}


def scatters(text: str) -> list[str]:
    """How every scatter of a program in StableHLO combines: "set", "add", "maximum"."""
    bodies = re.findall(r'"stablehlo\.scatter"\(.*?\}\) :', text, re.DOTALL)
    found = [re.findall(r"stablehlo\.(add|maximum|multiply) ", body) for body in bodies]
    return [one[0] if one else "set" for one in found]


@pytest.mark.parametrize("name", PROGRAMS)
def test_lowers_for_accelerators(name):
    program = PROGRAMS[name]()
    text = export.export(program.jitted(), platforms=PLATFORMS)(*program.arguments).mlir_module()
    assert "stablehlo.custom_call" not in re.sub(r"stablehlo.custom_call @(Sharding|SPMD\w+)", "", text)  # no host
    assert not re.search(r"xf64|tensor<f64|tensor<[\dx]*\?", text)  # no double precision, no unknown sizes
    if name.startswith("tabular"):
        return
    # A TPU runs a scatter-add one row after the other, and a GPU in any order.
    assert "add" not in scatters(text)
    if name in SETS:
        assert len(scatters(text)) == SETS[name]


def test_the_gradient_of_a_look_up_is_a_scatter_on_cpu_alone():
    program = PROGRAMS["hyperagent"]()
    lowered = program.jitted().lower(*program.arguments).as_text()
    assert jax.default_backend() != "cpu" or scatters(lowered).count("add") == 1
