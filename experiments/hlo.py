"""Reads compiled programs: XLA's text of what a TPU or a GPU would run."""

from collections.abc import Iterator
import math
import re

# The clock of a TPU v5e, which the compiler's cycles refer to.
_TPU_HERTZ = 0.94e9
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "s64": 8, "u64": 8, "f64": 8}
# What starts no kernel by itself.
_FREE = {
    "get-tuple-element", "tuple", "parameter", "constant", "bitcast", "while", "conditional", "call", "after-all",
    "partition-id", "replica-id",
}  # fmt: skip


class Text:
    """A compiled program.

    Attributes:
        entry: the name of the computation it begins with.
    """

    def __init__(self, text: str):
        self._computations: dict[str, list[str]] = {}
        self.entry, lines = "", None
        for line in text.splitlines():
            if found := re.match(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$", line):
                lines = self._computations[found[2]] = []
                self.entry = found[2] if found[1] else self.entry
            elif line.startswith("}"):
                lines = None
            elif lines is not None and re.match(r"^\s+(?:ROOT )?%[\w.\-]+ = ", line):
                lines.append(line)

    def _loops(self, name: str) -> Iterator[tuple[str, int | None]]:
        """The bodies of a computation's loops, and how often each runs, if that is known."""
        for line in self._computations[name]:
            if found := re.search(r" while\(.*condition=%([\w.\-]+), body=%([\w.\-]+)", line):
                known = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
                yield found[2], int(known[1]) if known else self._trips(found[1])

    def _trips(self, condition: str) -> int | None:
        lines = self._computations[condition]
        constants = [int(x) for line in lines for x in re.findall(r"s32\[\]\S* constant\((\d+)\)", line)]
        return max(constants) if constants and len(lines) <= 6 else None

    def step(self, depth: int) -> str:
        """The body of the largest loop, `depth` loops deep; the whole program at depth 0."""
        name = self.entry
        for _ in range(depth):
            name = max(
                (body for body, _ in self._loops(name)), key=lambda body: (self.cycles(body), self.kernels(body))
            )
        return name

    def cycles(self, name: str) -> int:
        """The TPU compiler's estimate; a loop that runs an unknown number of times counts once."""
        own = (re.search(r'"estimated_cycles":"(\d+)"', line) for line in self._computations[name])
        return sum(int(x[1]) for x in own if x) + sum(
            (n or 1) * self.cycles(body) for body, n in self._loops(name)
        )

    def microseconds(self, name: str) -> float:
        """`cycles` as time on a TPU v5e."""
        return 1e6 * self.cycles(name) / _TPU_HERTZ

    def without_estimate(self, name: str) -> int:
        """Gathers and scatters that the TPU compiler gives no estimate for."""
        kinds = [
            line
            for line in self._computations[name]
            if "estimated_cycles" not in line and re.search(r"%(gather|scatter)\S* = ", line)
        ]
        return len(kinds) + sum((n or 1) * self.without_estimate(body) for body, n in self._loops(name))

    def row_loops(self, name: str) -> int:
        """Loops that a scatter or gather was turned into: one row after the other."""
        own = [
            line
            for line in self._computations[name]
            if re.search(r' while\(.*op_name="[^"]*(scatter|gather)', line)
        ]
        return len(own) + sum(self.row_loops(body) for body, _ in self._loops(name))

    def kernels(self, name: str) -> int:
        """Kernels and copies that a GPU starts."""
        own = sum(_kind(line) not in _FREE for line in self._computations[name])
        return own + sum((n or 1) * self.kernels(body) for body, n in self._loops(name))

    def large_copies(self, name: str, num_bytes: float = 1e6) -> int:
        """Copies of arrays of at least so many bytes."""
        own = [x for x in self._computations[name] if _kind(x).startswith("copy") and _size(x) >= num_bytes]
        return len(own) + sum((n or 1) * self.large_copies(body, num_bytes) for body, n in self._loops(name))


def _kind(line: str) -> str:
    found = re.search(r"[\])}]\s([a-z][\w\-]*)\(", line.split(" = ", 1)[1])
    return found[1] if found else ""


def _size(line: str) -> int:
    found = re.match(r"\(?(\w+)\[([\d,]*)\]", line.split(" = ", 1)[1])
    return _BYTES.get(found[1], 4) * math.prod(int(x) for x in found[2].split(",") if x) if found else 0
