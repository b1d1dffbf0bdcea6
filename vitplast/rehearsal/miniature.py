"""A profile in miniature: the same entries, experiments, variants and options, with fewer sets, rates and seeds.

The rule, for whatever profile: in every list of sets (and of configurations, if any were chosen) those that were chosen
stay, its first where none was; of learning rates some from the smallest to the largest, of seeds the first ones; a unit
takes all rates, seeds and targets at once, so that there are few kernels; numbers shrink as `numbers` says; models
become tiny ones of the same family with random weights. Everything else, `experiment` and the variants among it, stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vitplast.components import parse_components
from vitplast.errors import InputError
from vitplast.models.text_names import FOLDER, is_text_model
from vitplast.parameters import KINDS
from vitplast.rehearsal.numbers import RULES, validation
from vitplast.runs.plan import KEYS, PROFILES
from vitplast.runs.reading import mapping, named_lists, read_yaml

#: Sets of the default rehearsal: between them every format on the disk, and one corruption.
SETS = ("cifar10", "cifar100", "cifar10_c:motion_blur:5", "domainnet_clipart", "flowers102", "pets")
#: Parameters that name sets.
NAMES = ("dataset", "targets")
HEAD = """\
# A rehearsal of the profile {name}, written by `vitplast rehearse`. Its images and texts are made up and its models are
# random and tiny: no number of it says anything about finetuning.
"""


@dataclass(frozen=True)
class Choice:
    """What is left of the real profile: image sets, learning rates and seeds by number, configurations (empty: all).

    Raises
    ------
    InputError, UnknownNameError
        If a number is below 1, there is no set, or a configuration has no such name.
    """

    sets: tuple[str, ...] = SETS
    rates: int = 2
    seeds: int = 2
    configurations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("rates", "seeds"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise InputError(f"{name} must be a whole number from 1, got {getattr(self, name)!r}")
        if not self.sets:
            raise InputError("name at least one image set")
        for name in self.configurations:
            parse_components(name)

    def of_list(self, name: str, values: list) -> list:
        """What stays of a list of values of parameter `name`."""
        if name in NAMES:
            return [one for one in values if one in self.sets] or values[:1]
        if name == "components" and self.configurations:
            return [one for one in values if one in self.configurations] or values[:1]
        if name == "lrs":
            return _spread(values, self.rates)
        return values[: self.seeds] if name == "seeds" else values


def profile_file(name: str) -> Path:
    """File of a profile, by its name or path, without a variant."""
    return Path(name) if name.endswith((".yaml", ".yml")) else PROFILES / f"{name}.yaml"


def miniature(path: Path, text_model: Path, choice: Choice | None = None) -> str:
    """The text of the small profile.

    Parameters
    ----------
    path : Path
        The file of the real one.
    text_model : Path
        Folder of a tiny text model, which stands for every text model.
    choice : Choice, optional
        What stays; default: two rates, two seeds and `SETS`.

    Raises
    ------
    InputError
        If the file can't be read, or one of its lists is used for parameters with different rules.
    """
    content = mapping(read_yaml(path), path.name, KEYS)
    return _Miniature(path.stem, content, text_model, choice or Choice()).text()


class _Miniature:
    def __init__(self, name: str, content: Mapping[str, Any], text_model: Path, choice: Choice) -> None:
        self.name, self.content, self.choice = name, content, choice
        self.text_model = f"{FOLDER}{text_model}"
        self.defaults = dict(content.get("defaults") or {})
        self.entries = [dict(entry) for entry in content["units"]]
        self.used = self._uses()

    def text(self) -> str:
        """YAML, with a heading; every list of plain values on one line."""
        made: dict[str, Any] = {
            "description": f"Rehearsal of profile {self.name} in miniature: made-up images and texts, tiny random "
            "models. The numbers mean nothing.",
            "gpu": False,
            "lists": self._lists(self.content.get("lists") or {}),
            "defaults": self._defaults(self.defaults, whole=True),
        }
        variants = self.content.get("variants") or {}
        if variants:
            made["variants"] = {str(name): self._variant(own or {}) for name, own in variants.items()}
        made["units"] = [self._entry(entry) for entry in self.entries]
        parts = [
            yaml.dump({key: value}, Dumper=_Plain, sort_keys=False, width=116, allow_unicode=True)
            for key, value in made.items()
            if value or key == "gpu"
        ]
        return HEAD.format(name=self.name) + "\n".join(parts)

    def _variant(self, own: Mapping[str, Any]) -> dict[str, Any]:
        found = {
            "lists": self._lists(own.get("lists") or {}),
            "defaults": self._defaults(own.get("defaults") or {}),
        }
        return {key: value for key, value in found.items() if value}

    def _lists(self, lists: Mapping[str, list]) -> dict[str, list]:
        found = {}
        for name, values in named_lists(lists, f"{self.name}: lists").items():
            made = [self._values(kind, parameter, values, steps) for kind, parameter, steps in self.used.get(name, [])]
            if any(one != made[0] for one in made):
                raise InputError(f"{self.name}: the list {name} is used for parameters that shrink in different ways")
            found[name] = made[0] if made else values
        return found

    def _defaults(self, defaults: Mapping[str, Any], *, whole: bool = False) -> dict[str, Any]:
        """`whole`: with the random weights, and with what shrinks though the real profile leaves it at its default."""
        found = {
            kind: {n: self._value(kind, n, v, self._steps_of(kind)) for n, v in (values or {}).items()}
            for kind, values in defaults.items()
        }
        if not whole:
            return found
        found["every"] = found.get("every", {}) | {"weights": "random"}
        for kind in dict.fromkeys(entry["kind"] for entry in self.entries):
            own = found.setdefault(kind, {})
            for f in dataclasses.fields(KINDS[kind]):
                rule = RULES.get(f.name)
                if rule and f.name not in own and f.name not in found["every"] and f.name != "model":
                    small = rule(f.default)
                    own |= {f.name: small} if small != f.default else {}
        return {kind: values for kind, values in found.items() if values}

    def _entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        kind = entry["kind"]
        steps = [entry["steps"]] if isinstance(entry.get("steps"), int) else self._steps_of(kind)
        kept = ("kind", "experiment")
        made = {n: v if n in kept else self._value(kind, n, v, steps) for n, v in entry.items()}
        return made | ({"weights": "auto"} if made.get("model") == self.text_model else {})

    def _value(self, kind: str, name: str, value: Any, steps: list[int]) -> Any:
        if isinstance(value, str) and value.startswith("$"):
            return value
        if isinstance(value, Mapping):  # `each`: one unit a value
            each = self._value(kind, name, value["each"], steps)
            return each if name in KINDS[kind].swept else {"each": each}
        if isinstance(value, list):
            return self._values(kind, name, value, steps)
        return self._one(name, value, steps)

    def _values(self, kind: str, name: str, values: list, steps: list[int]) -> list:
        return list(dict.fromkeys(self._one(name, one, steps) for one in self.choice.of_list(name, values)))

    def _one(self, name: str, value: Any, steps: list[int]) -> Any:
        if name == "validate_every":
            return validation(value, steps)
        if name == "model" and is_text_model(value):
            return self.text_model
        return RULES[name](value) if name in RULES else value

    def _steps_of(self, kind: str) -> list[int]:
        named = {"every", kind}
        return [v["steps"] for k, v in self.defaults.items() if k in named and isinstance(v.get("steps"), int)]

    def _uses(self) -> dict[str, list[tuple[str, str, list[int]]]]:
        """List name to (kind, parameter, real steps of all the entries that use it so)."""
        steps: dict[tuple[str, str, str], list[int]] = {}
        for kind, values, own in self._all():
            for name, value in values.items():
                for used in _names_in(value):
                    steps.setdefault((used, kind, name), []).extend(own)
        found: dict[str, list[tuple[str, str, list[int]]]] = {}
        for (used, kind, name), own in steps.items():
            found.setdefault(used, []).append((kind, name, own))
        return found

    def _all(self) -> Iterator[tuple[str, Mapping[str, Any], list[int]]]:
        variants = (self.content.get("variants") or {}).values()
        for defaults in (self.defaults, *((own or {}).get("defaults") or {} for own in variants)):
            for kind, values in defaults.items():
                yield kind, values or {}, self._steps_of(kind)
        for entry in self.entries:
            steps = entry.get("steps")
            yield entry["kind"], entry, [steps] if isinstance(steps, int) else self._steps_of(entry["kind"])


def _names_in(value: Any) -> list[str]:
    """Names of lists that stand in a value."""
    if isinstance(value, Mapping):
        value = value.get("each")
    texts = value if isinstance(value, list) else [value]
    return [text[1:] for text in texts if isinstance(text, str) and text.startswith("$")]


def _spread(values: list, number: int) -> list:
    """`number` of the values, from the first to the last at equal distances."""
    if number >= len(values):
        return values
    if number == 1:
        return values[len(values) // 2 : len(values) // 2 + 1]
    return [values[round(k * (len(values) - 1) / (number - 1))] for k in range(number)]


class _Plain(yaml.SafeDumper):
    """Lists on one line, no anchors (which profiles may not have)."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        plain = all(not isinstance(one, (list, Mapping)) for one in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain)
