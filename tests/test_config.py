"""Flags made from config dataclasses."""

import dataclasses

from absl import flags
import pytest

from hyperagent_jax import agents
from hyperagent_jax import config
from hyperagent_jax import errors


@dataclasses.dataclass(frozen=True)
class Base:
    """Shared.

    Attributes:
        width: how wide,
            in cells.
    """

    width: int = 3

    def __post_init__(self):
        if self.width < 0:
            raise ValueError(f"width must be at least 0, got {self.width}")


@dataclasses.dataclass(frozen=True)
class Long(Base):
    """Long.

    Attributes:
        sizes: several.
        fast: or slow.
    """

    sizes: tuple[int, ...] = (1, 2)
    fast: bool = True


CLASSES = {"long": Long, "base": Base}


def _from(*arguments, agent="long"):
    values = flags.FlagValues()
    config.define_flags(CLASSES, values)
    values(["program", *arguments])
    return config.from_flags(agent, CLASSES[agent], CLASSES, values)


def test_unset_flags_keep_the_defaults_and_set_ones_are_parsed():
    assert _from() == Long()
    assert _from("--width=5", "--sizes=7,8,9", "--nofast") == Long(width=5, sizes=(7, 8, 9), fast=False)


def test_a_new_setting_had_the_default_of_the_class_that_defines_it():
    @dataclasses.dataclass(frozen=True)
    class Preset(Long):
        width: int = 9
        sizes: tuple[int, ...] = (5,)

    assert config.introduced(a=Preset(), b=Base()) == {
        "a": {"width": 3, "sizes": [1, 2], "fast": True},
        "b": {"width": 3},
    }


def test_what_an_older_version_filed_is_completed():
    new = {"part": {"x": 1, "y": 2, "z": 3}, "other": {"x": 1}, "top": 0}
    now = {"part": {"w": 0, "x": 5, "y": 2}, "top": 7}
    filed = {"part": {"w": 0, "x": 4}, "other": {}, "gone": 1}
    expected = {"part": {"w": 0, "x": 4, "y": 2}, "other": {}, "gone": 1, "top": 0}
    assert config.completed(filed, now, new) == expected
    assert filed == {"part": {"w": 0, "x": 4}, "other": {}, "gone": 1}


def test_help_text_comes_from_the_docstring():
    values = flags.FlagValues()
    config.define_flags(CLASSES, values)
    assert values["width"].help == "how wide, in cells. (default: 3)"


def test_help_text_names_agents_with_another_default():
    @dataclasses.dataclass(frozen=True)
    class Wide(Base):
        width: int = 9

    values = flags.FlagValues()
    config.define_flags({**CLASSES, "wide": Wide, "also": Wide}, values)
    assert values["width"].help == "how wide, in cells. (default: 3; 9 for wide, also)"
    assert values["sizes"].help == "several. (default: 1,2) [long]"


@pytest.mark.parametrize(
    "arguments, agent, message",
    [
        (["--sizes=1"], "base", "agent base has no setting --sizes; it has: width"),
        (["--sizes=a"], "long", "--sizes must be a comma-separated list of int"),
        (["--width=-1"], "long", "--width must be at least 0, got -1"),
    ],
)
def test_bad_values_are_one_clear_line(arguments, agent, message):
    with pytest.raises(errors.UserError) as error:
        _from(*arguments, agent=agent)
    assert str(error.value) == message


@pytest.mark.parametrize("agent", agents.CONFIGS)
def test_every_field_of_every_agent_is_documented(agent):
    settings = agents.CONFIGS[agent].fields
    assert all(setting.help for setting in settings.values())
    assert set(settings) == set(config.field_help(agents.CONFIGS[agent].config_class))


@pytest.mark.parametrize(
    "setting",
    [{"batch_size": 0}, {"discount": 1.5}, {"hidden_sizes": ()}, {"num_ois": 0}, {"resample_probability": -0.1}],
)
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        agents.CONFIGS["hyperagent"](**setting)
