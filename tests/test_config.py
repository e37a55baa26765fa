"""Flags made from config dataclasses."""

import dataclasses

from absl import flags
import hypothesis
from hypothesis import strategies as st
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
    return config.from_flags(agent, CLASSES, values)


def test_unset_flags_keep_the_defaults_and_set_ones_are_parsed():
    assert _from() == Long()
    assert _from("--width=5", "--sizes=7,8,9", "--nofast") == Long(width=5, sizes=(7, 8, 9), fast=False)


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


@dataclasses.dataclass(frozen=True)
class Everything:
    """A setting of every type that configs have."""

    flag: bool = True
    count: int = 1
    rate: float = 0.5
    name: str = "x"
    sizes: tuple[int, ...] = (1,)
    rates: tuple[float, ...] = ()
    limit: int | None = None
    bound: float | None = None


_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_INTEGERS = st.integers(-(2**63), 2**63)
EVERYTHING = st.builds(
    Everything,
    flag=st.booleans(),
    count=_INTEGERS,
    rate=_FLOATS,
    name=st.text(),
    sizes=st.lists(_INTEGERS, max_size=4).map(tuple),
    rates=st.lists(_FLOATS, max_size=4).map(tuple),
    limit=st.none() | _INTEGERS,
    bound=st.none() | _FLOATS,
)


def _from_json(config_class, settings):
    types = {field.name: field.type for field in dataclasses.fields(config_class)}
    return config_class(**{name: config.from_json(name, types[name], value) for name, value in settings.items()})


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(EVERYTHING)
def test_json_gives_settings_back(made):
    settings = config.as_json(made)
    assert list(settings) == [field.name for field in dataclasses.fields(made)]
    assert _from_json(Everything, settings) == made


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(EVERYTHING)
def test_flags_give_settings_back(made):
    values = flags.FlagValues()
    config.define_flags({"all": Everything}, values)
    given = {name: value for name, value in dataclasses.asdict(made).items() if value is not None}
    values(["program", *(f"--{name}={config.as_text(value)}" for name, value in given.items())])
    assert config.from_flags("all", {"all": Everything}, values) == made


@pytest.mark.parametrize("agent", agents.CONFIGS)
def test_json_gives_every_agents_config_back(agent):
    made = agents.CONFIGS[agent]()
    assert _from_json(type(made), config.as_json(made)) == made


def test_a_replay_is_no_longer_than_the_run():
    made = agents.CONFIGS["hyperagent"](replay_capacity=100)
    assert config.cap_replay(made, 60).replay_capacity == 60
    assert config.cap_replay(made, 100) == config.cap_replay(made, 1_000) == made
