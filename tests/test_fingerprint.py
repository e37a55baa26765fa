"""What must agree for results to belong together, also with what older versions recorded."""

import dataclasses

import pytest

from hyperagent_jax.experiment import fingerprint


@dataclasses.dataclass(frozen=True)
class Base:
    width: int = 3
    sizes: tuple[int, ...] = (1, 2)


@dataclasses.dataclass(frozen=True)
class Preset(Base):
    """Overrides a default, and has a setting of its own and one without a default."""

    needed: int = dataclasses.field(kw_only=True)
    width: int = 9
    depth: int = 1


def test_a_new_setting_had_the_default_of_the_class_that_defines_it():
    assert fingerprint.field_defaults(Preset(needed=0)) == {"width": 3, "sizes": [1, 2], "depth": 1}
    made = fingerprint.make(
        {"config": dataclasses.asdict(Base()), "agent": "x"}, config=Base(), protocol=Preset(needed=0)
    )
    assert made.settings == {"config": {"width": 3, "sizes": [1, 2]}, "agent": "x"}  # as JSON has them
    assert made.defaults == {
        "config": {"width": 3, "sizes": [1, 2]},
        "protocol": {"width": 3, "sizes": [1, 2], "depth": 1},
    }


def test_what_an_older_version_saved_is_completed():
    defaults = {"part": {"x": 1, "y": 2, "z": 3}, "other": {"x": 1}, "top": 0}
    now = {"part": {"w": 0, "x": 5, "y": 2}, "top": 7}
    saved = {"part": {"w": 0, "x": 4}, "other": {}, "gone": 1}
    expected = {"part": {"w": 0, "x": 4, "y": 2}, "other": {}, "gone": 1, "top": 0}
    assert fingerprint.Fingerprint(now, defaults).completed(saved) == expected
    assert saved == {"part": {"w": 0, "x": 4}, "other": {}, "gone": 1}


def _of(config, **settings):
    return fingerprint.make({"agent": "x", "config": dataclasses.asdict(config), **settings}, config=config)


def test_equal_settings_have_no_difference():
    assert _of(Base()).difference({"agent": "x", "config": {"width": 3, "sizes": [1, 2]}}) is None
    assert _of(Base(), seeds=(0, 1)).difference(_of(Base(), seeds=[0, 1]).settings) is None


@pytest.mark.parametrize(
    "config, saved, difference",
    [
        # Not recorded: the default of the class that defines the setting was in effect, not the preset's.
        (Base(), {"sizes": [1, 2]}, None),
        (Base(width=4), {"sizes": [1, 2]}, ("width", 3, 4)),
        (Preset(needed=0), {"sizes": [1, 2], "needed": 0}, ("width", 3, 9)),
        (Preset(needed=0, width=3, depth=2), {"sizes": [1, 2], "needed": 0}, ("depth", 1, 2)),
        # Without a default nothing is known of what was in effect.
        (Preset(needed=0, width=3), {"sizes": [1, 2]}, ("needed", None, 0)),
        # A setting that is gone may have mattered.
        (Base(), {"width": 3, "sizes": [1, 2], "gone": 5}, ("gone", 5, None)),
        (Base(), {"width": 3, "sizes": [1, 3]}, ("sizes", [1, 3], [1, 2])),
    ],
)
def test_fields_that_older_versions_did_not_record(config, saved, difference):
    assert _of(config).difference({"agent": "x", "config": saved}) == difference


def test_the_first_difference_is_the_one_to_blame():
    """Another experiment before all else, the protocol before what follows from it."""
    ours = fingerprint.make({"experiment": "a", "config": {"capacity": 8}, "protocol": {"steps": 2}, "agent": "x"})
    saved = {"experiment": "a", "config": {"capacity": 4}, "protocol": {"steps": 1}, "agent": "x"}
    assert ours.difference(saved) == ("steps", 1, 2)
    assert ours.difference({**saved, "agent": "y"}) == ("agent", "y", "x")
    assert ours.difference({**saved, "agent": "y", "experiment": "b"}) == ("experiment", "b", "a")
    assert ours.difference({**ours.settings, "config": 4}) == ("config", 4, {"capacity": 8})
