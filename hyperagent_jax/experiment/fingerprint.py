"""Records the settings behind a run directory or checkpoint, and checks that a resumed run matches them."""

import dataclasses
import json
from typing import Any, NamedTuple


def _json(value: Any) -> Any:
    """Returns the value as it comes back from JSON: tuples become lists."""
    return json.loads(json.dumps(value))


class Fingerprint(NamedTuple):
    """Settings that must agree for results to be combined, as nested dicts of JSON values.

    A setting that an older version did not record is assumed to have had its value in `defaults`.
    """

    settings: dict[str, Any]
    defaults: dict[str, Any]

    def completed(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Returns the settings saved by an older version, with those that it did not know filled in."""
        return _completed(saved, self.settings, self.defaults)

    def difference(self, saved: dict[str, Any]) -> tuple[str, Any, Any] | None:
        """Returns the name, saved value and current value of the first setting that differs, or None."""
        return _first_difference("", self.completed(saved), self.settings)


def make(settings: dict[str, Any], **configs: Any) -> Fingerprint:
    """Makes a fingerprint of settings and of the dataclasses, or dicts of dataclasses, that they come from.

    Older versions behaved like a field's default in the class that defines it, whatever subclasses override.
    """
    return Fingerprint(_json(settings), {part: field_defaults(config) for part, config in configs.items()})


def field_defaults(config: Any) -> dict[str, Any]:
    """Returns every field's default in the class that defines it; for a dict of dataclasses, one dict for each."""
    if isinstance(config, dict):
        return {name: field_defaults(one) for name, one in config.items()}
    defaults: dict[str, Any] = {}
    for cls in reversed(type(config).__mro__):
        for name, field in getattr(cls, "__dataclass_fields__", {}).items():
            if field.default is not dataclasses.MISSING:
                defaults.setdefault(name, field.default)
    return _json(defaults)


def _completed(saved: dict[str, Any], now: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    result = dict(saved)
    for name, value in defaults.items():
        if isinstance(value, dict):
            if isinstance(saved.get(name), dict) and isinstance(now.get(name), dict):
                result[name] = _completed(saved[name], now[name], value)
        elif name in now:
            result.setdefault(name, value)
    return result


def _first_difference(name: str, was: Any, now: Any) -> tuple[str, Any, Any] | None:
    if not isinstance(was, dict) or not isinstance(now, dict):
        return None if was == now else (name, was, now)
    # The experiment comes first: two different experiments have nothing comparable. Agents' settings come last:
    # some of them follow from the protocol.
    for key in sorted({*was, *now}, key=lambda key: (key != "experiment", key.startswith("config"), key)):
        if difference := _first_difference(key, was.get(key), now.get(key)):
            return difference
    return None
