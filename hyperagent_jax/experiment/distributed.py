"""One run on several hosts: `--distributed`. How processes find each other, talk, and notice that one is lost.

JAX connects the devices. Besides that every process has a connection to process 0 over which it sends the few
numbers of a round: faster than a collective of the devices, free of their time limits, and closed by the system at
once when a process dies.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import hashlib
import os
import queue as queue_lib
import secrets
import socket
import struct
import sys
import threading
import time
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import errors
from hyperagent_jax import sharding
from hyperagent_jax.experiment import launching

_HEADER = struct.Struct("!cII")  # kind, number of a process, length of what follows
_HELLO, _NUMBERS, _STOP, _LOST, _END = b"H", b"N", b"S", b"L", b"E"
# How long a process that failed waits to hear that it was another one's fault.
_SECONDS_TO_HEAR = 3.0
_CODE_OF_LOSS = 1


@dataclasses.dataclass(frozen=True)
class Options:
    """How the processes of one run find each other.

    Attributes:
        distributed: whether this process is one of several, on as many hosts, that share one learner; each plays
            its share of num_envs with its share of replay_capacity and batch_size.
        coordinator_address: host and port of process 0, such as host0:12345; by default taken from Slurm, Open
            MPI, Kubernetes or Cloud TPU.
        num_processes: number of processes; 0 to take it from the cluster.
        process_id: number of this process, from 0; -1 to take it from the cluster.
    """

    distributed: bool = False
    coordinator_address: str = ""
    num_processes: int = 0
    process_id: int = -1

    def __post_init__(self) -> None:
        given = (self.coordinator_address, self.num_processes, self.process_id)
        if not self.distributed and given != ("", 0, -1):
            raise ValueError("coordinator_address, num_processes and process_id need distributed: give it, too")


class Connection:
    """One end of a connection that carries messages."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that lost its power says nothing; this notices it within a dozen seconds.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._lock = threading.Lock()

    def send(self, kind: bytes, rank: int, content: bytes = b"") -> None:
        """Sends a message; one to a process that is gone is dropped."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(_HEADER.pack(kind, rank, len(content)) + content)

    def _read(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            part = self._socket.recv(length - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def receive(self) -> tuple[bytes, int, bytes] | None:
        """Waits for a message; None once the other end is gone."""
        try:
            kind, rank, length = _HEADER.unpack(self._read(_HEADER.size))
            return kind, rank, self._read(length)
        except (OSError, EOFError):
            return None


class Group:
    """The processes of a run, as one of them sees the others; see `runners.shared.Group`."""

    def __init__(self, rank: int, size: int, mesh: Any, connections: dict[int, Connection]):
        """Takes the connections, by the number of the other process, and begins to listen."""
        self.rank, self.size, self.mesh = rank, size, mesh
        self.save: Callable[[], None] = lambda: None  # called, in another thread, before this process leaves
        self.is_told_to_stop = False
        self.is_in_task = False
        self.exit_code = 0  # of process 0, which the others end with
        self._has_told = self._is_over = False
        self._code = 0  # with which process 0 ended
        self._leaving = threading.Lock()
        self._connections = connections
        self._received: dict[int, queue_lib.SimpleQueue[bytes]] = {n: queue_lib.SimpleQueue() for n in connections}
        for other in connections:
            threading.Thread(target=self._listen, args=(other,), daemon=True).start()

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the int32 numbers that every process passed, [size, n]; all must call it."""
        own = np.asarray(numbers).astype(np.int32)
        if self.rank:
            self._connections[0].send(_NUMBERS, self.rank, own.tobytes())
            content = self._received[0].get()
            if not content:
                raise SystemExit(self._code)
            return np.frombuffer(content, np.int32).reshape(self.size, -1)
        rows = [own, *(np.frombuffer(self._received[n].get(), np.int32) for n in range(1, self.size))]
        if len({len(row) for row in rows}) > 1:
            raise errors.UserError("the processes do different things: give all of them the same flags")
        content = np.array(rows).tobytes()
        for connection in self._connections.values():
            connection.send(_NUMBERS, 0, content)
        return np.array(rows)

    def jit_update(self, update: Callable[..., Any], keeps_losses: bool) -> Callable[..., Any]:
        """Compiles an update whose batch comes in parts."""
        return sharding.jit_update_of_parts(update, self.mesh, keeps_losses)

    def tell_to_stop(self) -> None:
        """Has all processes stop as soon as they can."""
        if not self._has_told:
            self._has_told = True
            self._tell(_STOP, self.rank)

    def _tell(self, kind: bytes, rank: int) -> None:
        for connection in self._connections.values():
            connection.send(kind, rank)

    def _listen(self, other: int) -> None:
        """Takes what one process sends, until it is gone."""
        while (message := self._connections[other].receive()) is not None:
            kind, rank, content = message
            if kind == _NUMBERS:
                self._received[other].put(content)
            elif kind == _STOP:
                self.is_told_to_stop = True
                if self.rank == 0:
                    self._tell(_STOP, rank)
            elif kind == _LOST:
                self._leave(rank)
            elif kind == _END and other == 0:
                self._code = rank
                self._received[other].put(b"")
                return
            elif kind == _END:
                break  # before process 0, which perhaps has the same reason
        if message is not None:
            time.sleep(_SECONDS_TO_HEAR)
        self._leave(other)

    def _leave(self, lost: int) -> None:
        """Ends this process because another one is gone: whatever it waits for would never come."""
        with self._leaving:
            if self._is_over:
                return
            if self.rank == 0:
                self._tell(_LOST, lost)
            told = ""
            try:
                self.save()
            except Exception as error:  # there is nobody else to tell
                told = f" (not saved: {launching.describe(error)})"
            self.end(
                f"process {lost} of {self.size} was lost: process {self.rank} ends too{told}; start all of them "
                "again with --resume",
                _CODE_OF_LOSS,
            )

    def end(self, message: str, code: int) -> None:
        """Ends this process at once, with one line."""
        sys.stdout.flush()
        print(f"\nerror: {message}", file=sys.stderr, flush=True)
        os._exit(code)

    def fail(self, error: BaseException) -> None:
        """Ends this process because of an exception, unless it was the loss of another one."""
        time.sleep(_SECONDS_TO_HEAR)
        with self._leaving:
            with contextlib.suppress(Exception):
                self.save()
            told = str(error) if isinstance(error, errors.UserError) else launching.failure(error)  # type: ignore[arg-type]
            self.end(f"process {self.rank} of {self.size}: {told}", 2)

    def close(self, code: int) -> None:
        """Says that this process ends; if it is process 0, the others do too, with the same code."""
        self._is_over = True
        self._tell(_END, code)

    @contextlib.contextmanager
    def in_task(self) -> Iterator[None]:
        """Says that processes do things together, so that an error of one is the end of all."""
        self.is_in_task = True
        yield
        self.is_in_task = False

    def require_same(self, text: str) -> None:
        """Refuses to continue unless all processes passed the same text."""
        digest = np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], np.int32)
        found = self.gather(digest)
        if np.any(found != found[0]):
            raise errors.UserError("--distributed: the processes have different flags: give all of them the same")


_current: Group | None = None


def current() -> Group | None:
    """The processes that this one has joined; None if it runs by itself."""
    return _current


def _initialize(options: Options) -> None:
    if jax.config.values["jax_platforms"] in (None, "", "cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            options.coordinator_address or None,
            options.num_processes or None,
            options.process_id if options.process_id >= 0 else None,
        )
    except (ValueError, RuntimeError) as error:
        raise errors.UserError(
            f"--distributed: the processes cannot find each other ({launching.describe(error)}): give "
            "--coordinator_address=host:port of process 0, --num_processes and --process_id, or start with srun"
        ) from error


def _connect(mesh: Any) -> dict[int, Connection]:
    """Connects all processes with process 0."""
    from jax._src import distributed as jax_distributed  # what else knows which host was found?

    address = str(jax_distributed.global_state.coordinator_address)
    host, rank, size = address.rpartition(":")[0].strip("[]"), jax.process_index(), jax.process_count()
    server = None
    own = np.zeros((len(mesh.local_devices), 2), np.int32)
    if rank == 0:
        is_here = host in ("localhost", "127.0.0.1", "::1")
        server = socket.create_server((host if is_here else "", 0))
        own[0] = server.getsockname()[1], secrets.randbits(30)
    # The first collective also connects the devices, for which JAX needs its coordinator.
    spread = jax.sharding.NamedSharding(mesh, jax.P(sharding.AXIS))
    total = jax.jit(lambda x: jnp.sum(x, axis=0), out_shardings=jax.sharding.NamedSharding(mesh, jax.P()))
    port, token = map(int, np.asarray(total(jax.make_array_from_process_local_data(spread, own))))
    hello = token.to_bytes(4, "big")
    if server is None:
        connection = Connection(socket.create_connection((host, port), timeout=60))
        connection._socket.settimeout(None)
        connection.send(_HELLO, rank, hello)
        return {0: connection}
    connections: dict[int, Connection] = {}
    with server:
        server.settimeout(60)
        while len(connections) < size - 1:
            accepted, _ = server.accept()
            accepted.settimeout(10)
            connection = Connection(accepted)
            message = connection.receive()
            if message is not None and message[0] == _HELLO and message[2] == hello:
                accepted.settimeout(None)
                connections[message[1]] = connection
    return connections


@contextlib.contextmanager
def joined(options: Options) -> Iterator[Group]:
    """Joins the other processes of a run; an exception inside ends this process with one line."""
    global _current
    _initialize(options)
    mesh = sharding.mesh_of_processes()
    try:
        connections = _connect(mesh)
    except OSError as error:
        raise errors.UserError(
            f"--distributed: cannot connect to process 0 ({launching.describe(error)}): its host must accept "
            "connections on any port from the others"
        ) from error
    if jax.default_backend() == "cpu":
        # The devices are connected; JAX's coordinator would now only abort all processes when the first is lost.
        jax.distributed.shutdown()
    group = _current = Group(jax.process_index(), jax.process_count(), mesh, connections)
    code = 2
    try:
        yield group
        code = 0
    except BaseException as error:
        if isinstance(error, SystemExit) or (isinstance(error, errors.UserError) and not group.is_in_task):
            raise
        group.fail(error)
    finally:
        group.close(group.exit_code if code == 0 else code)
        _current = None


def leading(group: Group, tasks: Sequence[Any], function: launching.TaskFunction) -> launching.TaskFunction:
    """Returns a task function of process 0 that has the others run the same task; `tasks` are those all know."""
    numbers = {(task.columns, task.seeds): number for number, task in enumerate(tasks)}

    def run(task: Any, report: Callable[[Any], None], should_stop: Callable[[], bool]) -> bool | None:
        group.gather(np.array([numbers[task.columns, task.seeds]]))
        with group.in_task():
            return function(task, report, should_stop)

    return run


def follow(group: Group, tasks: Sequence[Any], function: launching.TaskFunction) -> NoReturn:
    """Runs the tasks that process 0 runs, until it ends."""
    with launching.stop_signal(*launching.STOP_SIGNALS) as should_stop:
        while True:
            number = int(group.gather(np.zeros(1))[0, 0])
            with group.in_task():
                function(dataclasses.replace(tasks[number], rank=group.rank), lambda event: None, should_stop)
