"""Breaks runs on purpose and compares what they end in with an unbroken run: `make test-faults`.

Every script and every launcher is killed with -9 at random moments, while it saves among them: the parent,
workers, or both. A trial in which no kill landed is repeated with an earlier moment. Files are damaged, a disk
is filled, and two drivers are let loose on one folder. Rows must be those of an unbroken run in all columns but
times, each once, in the same order, with nothing left over. With --out the trials are kept, and the same
command continues after the last.
"""

import argparse
from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any, NamedTuple
import warnings

os.environ.setdefault("NPROC", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import breaking  # isort: skip
import conftest  # isort: skip  # noqa: F401  (sets the environment that jax reads)

LEARNER = ["--agent=ddqn", "--hidden_sizes=8", "--batch_size=8"]
COMMON = ["--noprogress", "--checkpoint_seconds=0"]
SCRIPT = ["--num_seeds=2", *COMMON]
GRID = {
    "agent": "ddqn",
    "size": [4, 5],
    "seed": [0, 1, 2, 3, 4, 5],
    "hidden_sizes": [8],
    "batch_size": 8,
    "eval_episodes": 2,
    "eval_every": 50,
    "max_episodes": 300,
    "solved_return": 2,
    "replay_capacity": 400,
}
SWEEP = ["sweep.py", f"--grid={json.dumps(GRID)}", *COMMON]
SLURM = ["--launcher=slurm", "--slurm_cluster=local", "--tasks_per_job=3"]
FIELDS = ("what", "fault", "trial", "kind", "kills", "in_a_write", "held", "problem", "seconds")
# A moment that was not reached is brought forward this often before the trial counts as one that did not hold.
_ATTEMPTS = 6
_MOST_SECONDS = 1_800.0


class Case(NamedTuple):
    """A command to break."""

    name: str
    command: Sequence[str]
    launcher: str = "local"
    has_worker: bool = False  # also where one task runs at a time
    kinds: Sequence[str] = ("parent", "workers", "both")
    moments: Sequence[str] = ("time", "save", "row")
    again: str = "--resume"  # what continues it

    @property
    def local(self) -> list[str]:
        """The same on the local pool, one run at a time."""
        local = [part for part in self.command if not part.startswith(("--launcher", "--slurm", "--tasks"))]
        return [*local, *(["--num_workers=1"] if self.kinds != ("parent",) else [])]

    def of(self, kind: str) -> "Case":
        """The case with as many workers as it takes to kill them, or the script alone, which is sooner done."""
        if self.kinds == ("parent",):
            return self
        number = 1 if kind == "parent" and not self.has_worker else 2
        return self._replace(command=[*self.command, f"--num_workers={number}"])


CASES = [
    Case("run_deepsea.py, 2 seeds", ["run_deepsea.py", *LEARNER, "--size=4", "--max_episodes=1000",
                                     "--eval_every=100", "--solved_return=2", "--eval_episodes=2", *SCRIPT]),
    Case("run_gymnasium.py, 2 seeds", ["run_gymnasium.py", *LEARNER, "--steps=600", "--eval_every=100",
                                       "--eval_episodes=1", *SCRIPT]),
    Case("run_jax.py, 2 seeds", ["run_jax.py", *LEARNER, "--env=explore/mountain_car", "--steps=3000",
                                 "--eval_every=300", "--eval_episodes=1", *SCRIPT]),
    Case("run_bsuite.py, 2 ids", ["run_bsuite.py", *LEARNER, "--bsuite_id=catch/0,bandit/0", "--max_episodes=100",
                                  "--min_replay=50", *COMMON]),
    Case("run_atari.py, 2 seeds", ["run_atari.py", "--game=Pong", "--agent=ddqn", "--hidden_sizes=8",
                                   "--steps=120", "--num_envs=2", "--eval_every=40", "--eval_episodes=1",
                                   "--final_eval_episodes=1", "--max_frames=120", "--batch_size=2",
                                   "--min_replay=80", "--replay_capacity=300", *SCRIPT]),
    # It has no checkpoints and no workers: what was killed is run again.
    Case("run_tabular.py", ["run_tabular.py", "posterior", "--num_updates=500", "--num_transitions=20"],
         kinds=("parent",), moments=("time", "row"), again="--overwrite"),
    Case("sweep.py, 12 runs, local", SWEEP, has_worker=True),
    Case("sweep.py, 12 runs, Ray", [*SWEEP, "--launcher=ray"], "ray", has_worker=True),
    Case("sweep.py, 12 runs, submitit", [*SWEEP, *SLURM], "slurm", has_worker=True),
]  # fmt: skip


class Trial(NamedTuple):
    """What became of one trial."""

    kind: str
    kills: int | str  # that landed; blank where nothing is killed
    problem: str  # blank if it held
    in_a_write: int = 0  # kills that cut the writing of a file short


class Bench:
    """The place where runs are broken."""

    def __init__(self, folder: pathlib.Path, kinds: Sequence[str]):
        self._folder, self._kinds = folder, kinds
        self._unbroken: dict[tuple[str, ...], tuple[breaking.Rows, float]] = {}
        self.lives: dict[str, float] = {}  # seconds of the latest run of a case that no moment hit

    def new_folder(self) -> pathlib.Path:
        """A place for a run that is not there yet."""
        return pathlib.Path(tempfile.mkdtemp(dir=self._folder)) / "run"

    def unbroken(self, command: Sequence[str]) -> tuple[breaking.Rows, float]:
        """Rows and seconds of a run that nobody disturbs."""
        if (key := tuple(command)) not in self._unbroken:
            folder, begin = self.new_folder(), time.monotonic()
            if breaking.Script(command, folder).wait(_MOST_SECONDS):
                raise SystemExit(f"{command[0]} fails unbroken: {breaking.log(folder).read_text()}")
            self._unbroken[key] = breaking.rows(folder), time.monotonic() - begin
            shutil.rmtree(folder.parent)
        return self._unbroken[key]

    def knows(self, command: Sequence[str]) -> bool:
        """Whether the unbroken run of a command was made."""
        return tuple(command) in self._unbroken

    def learn(self, command: Sequence[str], rows: breaking.Rows, seconds: float) -> None:
        """Takes what another process got from `unbroken`."""
        self._unbroken[tuple(command)] = rows, seconds

    def _life(self, case: Case, missed: Sequence[breaking.Moment] = ()) -> float:
        """Returns how long a case's run takes: as the latest that was missed, or as the unbroken one.

        The unbroken one compiles, and a machine's load changes: moments in its time alone are mostly too late.
        """
        if lives := [moment.lived for moment in missed if moment.lived is not None]:
            self.lives[case.name] = max(lives)  # what is resumed at its end lives shorter
        return self.lives.get(case.name, self.unbroken(case.local)[1])

    def finish(self, command: Sequence[str], folder: pathlib.Path, again: str) -> str:
        """Lets a run end that was broken; returns what went wrong."""
        for _ in range(20):
            code = breaking.Script(command, folder, again).wait(_MOST_SECONDS)
            # Jobs of a cluster outlive their driver, and this is what the line that they cause says to do.
            if code != 2 or "in use by tasks of an earlier run" not in _last_line(folder):
                break
        return f"exit code {code}: {_last_line(folder)}" if code else ""

    def kinds_of(self, case: Case) -> list[str]:
        """Whom to kill in turn."""
        return [kind for kind in case.kinds if kind in self._kinds]

    def killed(self, case: Case, chance: random.Random, number: int) -> Trial:
        """Kills the parent, two workers or everything, whichever is the trial's turn."""
        kinds = self.kinds_of(case)
        kind = kinds[number % len(kinds)]
        expected, moments = self.unbroken(case.local)[0], []
        for attempt in range(_ATTEMPTS):
            folder, seconds = self.new_folder(), self._life(case, moments)
            number, limit = (2, seconds / 3) if kind == "workers" else (chance.choice([1, 2]), seconds)
            moments = [breaking.Moment(chance, limit, case.moments) for _ in range(number)]
            for moment in moments:
                moment.earlier(attempt)
            broken = self._kill_workers if kind == "workers" else self._kill_and_resume
            kills, halves, problem = broken(case.of(kind), folder, moments, chance, kind)
            problem = problem or breaking.problem(folder, expected)
            if kills or problem:
                if not problem:
                    shutil.rmtree(folder.parent)
                return Trial(f"{kind}: {'+'.join(moment.kind for moment in moments)}", kills, problem, halves)
        return Trial(kind, 0, "no kill landed")

    def _kill_and_resume(
        self,
        case: Case,
        folder: pathlib.Path,
        moments: Sequence[breaking.Moment],
        chance: random.Random,
        kind: str,
    ) -> tuple[int, int, str]:
        kills = halves = 0
        for moment in moments:
            script = breaking.Script(case.command, folder, case.again)
            landed = script.kill(kind, breaking.WORKERS[case.launcher]) if moment.wait(script) else 0
            kills += landed
            halves += bool(landed and breaking.half_written(folder))
        return kills, halves, self.finish(case.command, folder, case.again)

    def _kill_workers(
        self,
        case: Case,
        folder: pathlib.Path,
        moments: Sequence[breaking.Moment],
        chance: random.Random,
        kind: str,
    ) -> tuple[int, int, str]:
        """Of a run that nobody resumes; it must end by itself."""
        script = breaking.Script(case.command, folder)
        kills = halves = 0
        for moment in moments:
            if moment.wait(script):
                before, landed = breaking.half_written(folder), 0
                while script.poll() is None and not landed:  # between two tasks there may be no worker
                    landed = script.kill(kind, breaking.WORKERS[case.launcher], chance.choice)
                kills += landed
                halves += bool(landed and breaking.half_written(folder) > before)
        code = script.wait(_MOST_SECONDS)
        return kills, halves, f"exit code {code}: {_last_line(folder)}" if code else ""

    def stopped(self, case: Case, chance: random.Random, number: signal.Signals) -> Trial:
        """Asks the driver to stop; continues with --resume, on the local pool."""
        expected, missed = self.unbroken(case.local)[0], []
        local, broken = case.local, case.of("workers")
        for attempt in range(_ATTEMPTS):
            folder, moment = self.new_folder(), breaking.Moment(chance, self._life(case, missed))
            missed = [moment]
            moment.earlier(attempt)
            script = breaking.Script(broken.command, folder)
            if not moment.wait(script):
                continue
            os.kill(script.pid, number)
            code = script.wait(_MOST_SECONDS)
            if code == 0:  # it was at its end already
                continue
            problem = "" if code == 130 else f"exit code {code} after the signal: {_last_line(folder)}"
            problem = problem or self.finish(local, folder, "--resume")
            return Trial(moment.kind, "", problem or breaking.problem(folder, expected))
        return Trial("", "", "no signal came before the end")

    def damaged(self, case: Case, chance: random.Random, how: str) -> Trial:
        """Kills a run, damages a checkpoint, and continues."""
        expected, seconds = self.unbroken(case.local)
        case = case.of("workers")
        for _ in range(_ATTEMPTS):
            folder, moment = self.new_folder(), breaking.Moment(chance, seconds, ["save"])
            script = breaking.Script(case.command, folder)
            kills = script.kill("both", breaking.WORKERS[case.launcher]) if moment.wait(script) else 0
            files = sorted(folder.glob("checkpoints/*.npz"))
            if kills and files:
                break
        else:
            return Trial("", 0, "no kill left a checkpoint")
        file, halves = chance.choice(files), breaking.half_written(folder)
        content = bytearray(file.read_bytes())
        if how == "a byte changed":
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content[: len(content) // 2] if how == "cut short" else content * (how != "emptied"))
        problem = self.finish(case.command, folder, "--resume")
        for aside in folder.glob("checkpoints/*.damaged"):
            aside.unlink()
        return Trial("save", kills, problem or breaking.problem(folder, expected), int(halves > 0))

    def two_drivers(self, case: Case, chance: random.Random) -> Trial:
        """Starts the same command twice: one is refused in a line that names the other, which ends well."""
        expected, seconds = self.unbroken(case.local)
        case, folder = case.of("workers"), self.new_folder()
        first = breaking.Script(case.command, folder)
        while not (folder / "config.json").exists() and first.poll() is None:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.5) * seconds)
        code = breaking.Script(case.command, folder, "--resume").wait(_MOST_SECONDS)
        said = breaking.log(folder).read_text()
        if code != 2 or f"is in use by process {first.pid} on " not in said:
            return Trial("", "", f"the second driver ended with {code}: {_last_line(folder)}")
        problem = f"exit code {code}" if (code := first.wait(_MOST_SECONDS)) else ""
        return Trial("", "", problem or breaking.problem(folder, expected))

    def full_disk(self, case: Case, chance: random.Random) -> Trial:
        """Runs on a disk that is too small for checkpoints, then on one with room again."""
        expected, _ = self.unbroken(case.local)
        case = case.of("workers")
        with _small_disk(self._folder, chance.randint(40, 100)) as place:
            code = breaking.Script(case.command, place / "run").wait(_MOST_SECONDS)
            moved = self.new_folder()
            shutil.copytree(place / "run", moved)
            said = breaking.log(place / "run").read_text()
        breaking.log(moved).write_text(said)
        problem = "" if code in (0, 2) else f"exit code {code} on the full disk: {_last_line(moved)}"
        problem = problem or self.finish(case.command, moved, "--resume")
        return Trial(f"first exit code {code}", "", problem or breaking.problem(moved, expected))


def _last_line(folder: pathlib.Path) -> str:
    return (breaking.log(folder).read_text().splitlines() or [""])[-1]


@contextlib.contextmanager
def _small_disk(folder: pathlib.Path, kilobytes: int) -> Any:
    place = pathlib.Path(tempfile.mkdtemp(dir=folder))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=False)


def can_mount(folder: pathlib.Path) -> bool:
    """Whether a small disk can be made here, which only root can."""
    try:
        with _small_disk(folder, 40):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@dataclasses.dataclass(frozen=True, eq=False)
class Line:
    """A line of the table."""

    case: Case
    fault: str
    trials: int
    run: Callable[[random.Random, int], Trial]


def lines(bench: Bench, trials: int, has_small_disk: bool) -> list[Line]:
    """All there is to try."""
    found, few = [], -(-trials // 5)
    for case in filter(bench.kinds_of, CASES):
        killed = "killed" if case.kinds == ("parent",) else "parent, two workers, or all killed"
        found.append(Line(case, f"{killed}, {case.again}", trials, lambda x, i, c=case: bench.killed(c, x, i)))
    sweeps = CASES[-3:]

    def add(case: Case, fault: str, function: Callable[..., Trial], *arguments: Any) -> None:
        found.append(Line(case, fault, few, lambda x, i: function(case, x, *arguments)))

    for case in sweeps:
        add(case, "SIGTERM, then --resume on the local pool", bench.stopped, signal.SIGTERM)
    add(sweeps[0], "SIGHUP, then --resume", bench.stopped, signal.SIGHUP)
    for how in ("cut short", "a byte changed", "emptied"):
        add(sweeps[0], f"all killed, a checkpoint {how}, --resume", bench.damaged, how)
    add(sweeps[0], "two drivers of one folder", bench.two_drivers)
    if has_small_disk:
        add(sweeps[0], "a full disk, --resume where there is room", bench.full_disk)
    return found


class Record:
    """The trials so far, in a folder if there is one."""

    def __init__(self, folder: str | None, seed: int):
        from hyperagent_jax.experiment import fingerprint
        from hyperagent_jax.experiment import run_directory

        self.trials: list[dict[str, str]] = []
        self._directory = None
        if folder:
            settings = {"experiment": "faults", "seed": seed, "grid": GRID}
            settings["commands"] = {case.name: list(case.command) for case in CASES}
            self._directory = run_directory.RunDirectory(
                folder, fingerprint.make(settings), resume=True, overwrite=False
            )
            self.trials = self._directory.rows("results")

    def add(self, line: Line, number: int, trial: Trial, seconds: float) -> None:
        held = not trial.problem
        values = (
            line.case.name,
            line.fault,
            number,
            trial.kind,
            trial.kills,
            trial.in_a_write,
            held,
            trial.problem,
        )
        row = dict(zip(FIELDS, (*values, f"{seconds:.1f}"), strict=True))
        self.trials.append({name: str(value) for name, value in row.items()})
        if self._directory:
            self._directory.add("results", FIELDS, row)
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)

    def of(self, line: Line) -> list[dict[str, str]]:
        return [row for row in self.trials if (row["what"], row["fault"]) == (line.case.name, line.fault)]

    def missing(self, line: Line) -> list[int]:
        """Numbers of the trials of a line that are not there yet."""
        return sorted({*range(line.trials)} - {int(row["trial"]) for row in self.of(line)})

    def table(self, every: Sequence[Line]) -> list[dict[str, Any]]:
        """A row per line that was tried: trials, kills that landed, of them in a write, and trials that held."""
        table = []
        for line in every:
            if rows := self.of(line):
                kills = [int(row["kills"]) for row in rows if row["kills"]]
                counts: dict[str, Any] = {"trials": len(rows), "kills": sum(kills) if kills else ""}
                counts["in_a_write"] = sum(int(row["in_a_write"]) for row in rows) if kills else ""
                counts["held"] = sum(row["held"] == "True" for row in rows)
                table.append({"what": line.case.name, "fault": line.fault, **counts})
        if self._directory and table:
            self._directory.write("faults", list(table[0]), table)
        return table


def _prepare() -> None:
    """Imports what scripts would each import, and has them share compiled programs with later fault tests."""
    # Next to those of the tests: a kill may leave half a program.
    programs = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(programs.with_name(f"fault_{programs.name}"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    sys.path.insert(0, str(breaking.ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(breaking.ROOT), os.environ.get("PYTHONPATH")]))
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    import matplotlib.pyplot  # noqa: F401

    from hyperagent_jax.experiment import base
    from hyperagent_jax.experiment import driver  # noqa: F401

    for experiment in ("deepsea", "gymnasium", "jax"):
        base.get(experiment)


class _Lane:
    """Work in a process of its own, so that several trials run side by side."""

    def __init__(self, answer: pathlib.Path, work: Callable[..., Any], *arguments: Any):
        self._answer, self._is_over = answer, False
        self._pid = os.fork()  # no `multiprocessing`: scripts that it starts must not take themselves for workers
        if not self._pid:
            code = 1
            try:
                answer.write_text(json.dumps(work(*arguments)))
                code = 0
            except SystemExit:  # asked to end
                pass
            except BaseException:
                traceback.print_exc()
            finally:
                breaking.end_all()
                sys.stdout.flush()
                os._exit(code)

    def answer(self) -> Any:
        """What the work returned, as JSON; None until then."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        self._is_over = bool(pid)
        if status:
            raise SystemExit("a trial could not be run")
        return json.loads(self._answer.read_text()) if pid else None

    def end(self) -> None:
        """Ends the work and the scripts that it has started."""
        if not self._is_over:
            os.kill(self._pid, signal.SIGTERM)
            os.waitpid(self._pid, 0)


class Runner:
    """Runs the missing trials of lines, several side by side."""

    def __init__(self, bench: Bench, record: Record, every: Sequence[Line], seed: int):
        self._bench, self._record, self._every, self._seed = bench, record, every, seed
        self._lanes: dict[tuple[str, ...] | tuple[Line, int], _Lane] = {}  # by command or trial

    def run(self, chosen: Sequence[Line], seconds: float, side_by_side: int) -> None:
        """Begins trials for that long, then waits for those that have begun."""
        begin = time.monotonic()
        try:
            while True:
                if time.monotonic() - begin < seconds and len(self._lanes) < side_by_side and self._start(chosen):
                    continue
                if not self._lanes:
                    return
                self._collect()
                time.sleep(0.05)
        finally:
            for lane in self._lanes.values():
                lane.end()

    def _start(self, chosen: Sequence[Line]) -> bool:
        """Starts the next trial, or the unbroken run that it is compared with; returns whether there was one."""
        left = [(line, numbers) for line in chosen if (numbers := self._waiting(line))]
        # Lines advance alike, so that none has far fewer trials than another whenever this ends.
        for line, numbers in sorted(left, key=lambda one: -len(one[1]) / one[0].trials):
            command = tuple(line.case.local)
            if self._bench.knows(command):
                work = line, numbers[0]
                self._lanes[work] = _Lane(self._bench.new_folder(), self._try, *work)
                return True
            if command not in self._lanes:
                self._lanes[command] = _Lane(self._bench.new_folder(), self._bench.unbroken, command)
                return True
        return False

    def _waiting(self, line: Line) -> list[int]:
        return [number for number in self._record.missing(line) if (line, number) not in self._lanes]

    def _try(self, line: Line, number: int) -> tuple[Trial, float, dict[str, float]]:
        begin = time.monotonic()
        trial = line.run(random.Random(f"{self._seed} {line.case.name} {line.fault} {number}"), number)
        return trial, time.monotonic() - begin, self._bench.lives

    def _collect(self) -> None:
        for work, lane in list(self._lanes.items()):
            if (answer := lane.answer()) is None:
                continue
            del self._lanes[work]
            if isinstance(work[0], str):
                self._bench.learn(work, *answer)
                continue
            line, number = work
            trial, seconds, lives = answer
            self._bench.lives.update(lives)
            self._record.add(line, number, Trial(*trial), seconds)
            self._record.table(self._every)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20, help="of every line; a fifth where nothing is random")
    parser.add_argument("--only", default="", help="part of a line: its script, launcher or fault")
    parser.add_argument("--kinds", default="parent,workers,both", help="whom to kill, in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no trial begins")
    parser.add_argument("--side_by_side", type=int, default=1, help="trials at a time")
    parser.add_argument("--out", help="folder of results.csv (trials) and faults.csv (the table)")
    arguments = parser.parse_args()
    begin = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Not one that deletes itself: scripts that are forked would do so when they end.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hyperagent_jax_faults_"))
    try:
        _prepare()
        record = Record(arguments.out, arguments.seed)
        bench = Bench(folder, arguments.kinds.split(","))
        every = lines(bench, arguments.trials, can_mount(folder))
        chosen = [line for line in every if arguments.only in f"{line.case.name}, {line.fault}"]
        runner = Runner(bench, record, every, arguments.seed)
        runner.run(chosen, 60 * arguments.minutes, arguments.side_by_side)
    finally:
        breaking.end_all()
        shutil.rmtree(folder, ignore_errors=True)
    table = record.table(every)
    print("\n| what | fault | trials | kills landed | of them in a write | held |\n|---|---|---|---|---|---|")
    for row in table:
        print(f"| {' | '.join(map(str, row.values()))} |")
    print(f"\n{(time.monotonic() - begin) / 60:.0f} minutes")
    return 0 if table and all(row["trials"] == row["held"] for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
