"""Client states on the disk: whatever happens, each client is as its checkpoint states."""

from __future__ import annotations

import itertools
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift import files
from fedshift.core.contract import ServerState
from fedshift.core.state import ClientState
from fedshift.core.tensors import Tensors
from fedshift.errors import DamagedError
from fedshift.manifest import Manifest
from fedshift.rounds.store import DiskStore
from fedshift.runs.checkpoint import pack_server, unpack_server
from refusal import refuses

CPU = torch.device("cpu")


def the_state(client: int, value: int) -> ClientState:
    """A state that no other client and no other value has."""
    weight = torch.full((2, 3), float(1000 * client + value))
    optimisers = {"train": {"own.weight": {"momentum_buffer": weight / 3, "step": torch.tensor(float(value))}}}
    return ClientState({"own.weight": weight}, optimisers, {"train": value})


def bits(state: ClientState) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    """What must survive: every bit of every tensor, its type and shape."""
    return {
        name: (tensor.dtype, tuple(tensor.shape), tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        for name, tensor in state.flat().items()
    }


def states(store: DiskStore) -> dict[int, object]:
    return {client: bits(state) for client, state in store.items()}


def files_in(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "clients").iterdir())


class Position(Manifest):
    """A checkpoint of nothing but client states."""

    position: int


def checkpoint(store: DiskStore, run: Path, position: int) -> None:
    """What a run does every that many rounds."""
    before = Position.read(run / "manifest", "x").files if (run / "manifest").is_file() else {}
    now = Position(run="x", files=store.flush(), position=position)
    now.write(run / "manifest")
    for name in before.keys() - now.files.keys():
        files.remove(run / "clients" / name)


def resumed(run: Path, keep: int = 2) -> tuple[DiskStore, int]:
    """What a run does when it begins, and when it continues."""
    store = DiskStore(run / "clients", keep, CPU)
    there = Position(run="x", files={}, position=0)
    if (run / "manifest").is_file():
        there = Position.read(run / "manifest", "x")
    for name in {*files_in(run)} - there.files.keys():
        files.remove(run / "clients" / name)
    store.rewind(there.position, there.files)
    return store, there.position


def trained(run: Path, clients: int) -> DiskStore:
    """One round of that many clients, and its checkpoint."""
    store, _ = resumed(run)
    store.begin(1)
    for client in range(clients):
        store.put(client, the_state(client, 1))
    checkpoint(store, run, 1)
    return store


# Any order, any moment -------------------------------------------------------------------------


class PowerCutError(BaseException):
    """The machine stops: no handler of errors may do anything about it."""


class Power:
    """Stops the machine before the n-th thing that is done to the disk; what was not synced is lost then."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self._synced: set[tuple[int, int, int]] = set()
        replace, unlink, opens = Path.replace, Path.unlink, Path.open

        def fsync(descriptor: int) -> None:
            self.spend()
            self._synced.add(self._identity(os.fstat(descriptor)))

        def replacing(path: Path, target: Path) -> Path:
            self.spend()
            return replace(path, target)

        def unlinking(path: Path, missing_ok: bool = False) -> None:
            self.spend()
            unlink(path, missing_ok)

        def opening(path: Path, mode: str = "r", *arguments, **others):
            if "w" in mode:
                self.spend()
            return opens(path, mode, *arguments, **others)

        patch.setattr(os, "fsync", fsync)
        for name, wrapped in (("replace", replacing), ("unlink", unlinking), ("open", opening)):
            patch.setattr(Path, name, wrapped)

    def spend(self) -> None:
        if self.left == 0:
            raise PowerCutError
        if self.left is not None:
            self.left -= 1

    @contextmanager
    def fused(self, fuse: int | None) -> Iterator[None]:
        """Stop after ``fuse`` things done to the disk, if that many are."""
        self.left = fuse
        try:
            yield
        finally:
            self.left = None

    def lose(self, run: Path) -> None:
        """Empty every file that was never synced as it is."""
        for path in (path for path in run.rglob("*") if path.is_file()):
            if self._identity(path.stat()) not in self._synced:
                os.truncate(path, 0)

    @staticmethod
    def _identity(about: os.stat_result) -> tuple[int, int, int]:
        return about.st_ino, about.st_mtime_ns, about.st_size


ROUNDS = st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.booleans()), min_size=3, max_size=4)


@settings(max_examples=3)
@given(rounds=ROUNDS, keep=st.integers(0, 3))
def test_each_client_is_as_its_checkpoint_says(rounds: list[tuple[list[int], bool]], keep: int):
    """The power is cut before each thing that is done to the disk in turn, and in the midst of coming back, too.

    Values are never used twice, so a state of a round that was lost cannot pass for the one made again.
    """
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        power, fuse = Power(patch), 0
        while cut_at(fuse, rounds, keep, power, Path(folder, str(fuse))):
            fuse += 1


def cut_at(fuse: int, rounds: list[tuple[list[int], bool]], keep: int, power: Power, run: Path) -> bool:
    """Carry rounds out, of which some end with a checkpoint; returns whether the power was cut."""
    values, now, sealed, cut = itertools.count(1), dict[int, int](), 0, False
    saved = {0: now}
    store, position = resumed(run, keep)
    for clients, save in rounds:
        try:
            with power.fused(None if cut else fuse):
                position += 1
                store.begin(position)
                for client in clients:
                    assert (store.get(client) is None) == (client not in now)
                    now = now | {client: next(values)}
                    store.put(client, the_state(client, now[client]))
                if save:
                    saved[position] = now
                    checkpoint(store, run, position)
                    sealed = position
                fuse = power.left or 0
        except PowerCutError:
            cut = True
            power.lose(run)
            with suppress(PowerCutError), power.fused(fuse % 4):
                resumed(run, keep)
            power.lose(run)
            store, position = resumed(run, keep)
            assert position >= sealed, "a checkpoint that stood is gone"
            now, sealed = saved[position], position
            saved = {position: now}
        assert store.ids() == sorted(now)
        assert states(store) == {client: bits(the_state(client, value)) for client, value in now.items()}
        assert len(files_in(run)) == len(now) or position > sealed
    return cut


def test_a_store_that_was_used_goes_back_too(tmp_path: Path):
    store = trained(tmp_path, clients=3)
    named = store.flush()
    for position in (2, 3):
        store.begin(position)
        for client in range(4):
            store.put(client, the_state(client, position))
    store.rewind(1, named)
    assert states(store) == {client: bits(the_state(client, 1)) for client in range(3)}


# Memory and files ------------------------------------------------------------------------------


def test_memory_holds_the_states_used_last(tmp_path: Path):
    """Six clients take part, then all are read: three states live at any moment, the last three at the end."""
    store, _ = resumed(tmp_path, keep=3)
    store.begin(1)
    alive: dict[int, weakref.ref[ClientState]] = {}

    def living() -> list[int]:
        return [client for client, state in alive.items() if state() is not None]

    for client in range(6):
        state = the_state(client, 1)
        alive[client] = weakref.ref(state)
        store.put(client, state)
        del state
        assert living() == list(range(max(0, client - 2), client + 1))
    for client in range(6):
        alive[client] = weakref.ref(store.get(client))
        assert len(living()) == 3


def test_a_round_does_nothing_that_grows_with_the_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A small cohort reads and writes itself, and nobody lists the folder."""
    few = trained(tmp_path, clients=8)
    read, opens = [], Path.open
    before = {*files_in(tmp_path)}

    def opening(path: Path, mode: str = "r", *arguments, **others):
        if mode == "rb":
            read.append(path.name)
        return opens(path, mode, *arguments, **others)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opening)
        for name in ("listdir", "scandir"):
            patch.delattr(os, name)
        few.begin(2)
        for client in (1, 4):
            few.get(client)
            few.put(client, the_state(client, 2))
        few.flush()
    assert read == ["1@1.safetensors", "4@1.safetensors"]
    assert {*files_in(tmp_path)} - before == {"1@2.safetensors", "4@2.safetensors"}


# Bits ------------------------------------------------------------------------------------------

TENSORS = {
    "not a number": torch.tensor([0x7FC00001, 0x7F800001, -1], dtype=torch.int32).view(torch.float32),
    "signed zero": torch.tensor([0.0, -0.0, float("inf"), -float("inf")]),
    "counter": torch.tensor(2**62 + 1),
    "flag": torch.tensor([True, False]),
    "double": torch.tensor(1 / 3, dtype=torch.float64),
    "half": torch.tensor([1 / 3, 1e-40]).bfloat16(),
    "empty": torch.empty(0, 3),
    "channels last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "one channel, last": torch.arange(9.0).as_strided((1, 1, 3, 3), (9, 1, 3, 1)),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "a slice": torch.arange(12.0).reshape(3, 4)[:, 1:3],
    "expanded": torch.tensor([1.5]).expand(3),
    'a "name" / 00000000000000000000000000000000': torch.ones(1),
}
OPTIMISERS = {"train": {"w": {"step": torch.tensor(7.0), "exp_avg": TENSORS["channels last"] / 3}}}


@pytest.mark.parametrize("trained", [True, False])
def test_a_state_survives_bit_for_bit(tmp_path: Path, trained: bool):
    """Its order in memory too: a state from the disk must round as the one in memory would."""
    state = ClientState(TENSORS, OPTIMISERS, {"train": 3, "index": 0}, trained)
    store, _ = resumed(tmp_path, keep=0)
    store.begin(1)
    store.put(4, state)
    store.put(5, ClientState({}))
    checkpoint(store, tmp_path, 1)
    again, _ = resumed(tmp_path)
    back = again.get(4)
    assert back is not None
    assert bits(back) == bits(state)
    assert (back.drawn, back.trained) == ({"train": 3, "index": 0}, trained)
    assert again.get(5) == ClientState({})
    loose = ("a slice", "expanded")
    for name in (name for name in TENSORS if name not in loose):
        assert back.tensors[name].stride() == TENSORS[name].stride(), name
    assert all(back.tensors[name].is_contiguous() for name in loose)
    back.tensors["double"].add_(1)  # memory of its own, not the file's


def test_what_lay_on_the_cpu_beside_a_device_does_so_again(tmp_path: Path):
    """Adam counts its steps on the CPU. The device without memory stands in for an accelerator."""
    folder, elsewhere = tmp_path / "clients", torch.device("meta")
    store = DiskStore(folder, 0, elsewhere)
    store.put(0, ClientState({}, {"train": {"w": {"step": torch.tensor(7.0)}}}))
    step = store.get(0).optimisers["train"]["w"]["step"]
    assert (step.device, step.item()) == (CPU, 7)
    on_the_cpu = DiskStore(folder, 0, CPU)  # a run that was started on the CPU and continues elsewhere
    on_the_cpu.put(1, ClientState({"w": torch.ones(2)}))
    store.rewind(0, on_the_cpu.flush())
    assert store.get(1).tensors["w"].device == elsewhere


def test_a_servers_tensors_survive_bit_for_bit():
    one = Tensors({"d": torch.ones(2)})
    server = ServerState(Tensors(TENSORS), one, one, optimisers=OPTIMISERS)
    back = unpack_server(pack_server(server), CPU)
    for scope in ("shared", "down", "server"):
        assert bits(ClientState(getattr(back, scope))) == bits(ClientState(getattr(server, scope)))
    assert bits(ClientState({}, back.optimisers)) == bits(ClientState({}, OPTIMISERS))


# Damage ----------------------------------------------------------------------------------------


def test_damage_to_any_byte_is_noticed(tmp_path: Path):
    store, _ = resumed(tmp_path, keep=0)
    store.begin(1)
    store.put(0, ClientState({"w": torch.ones(1)}))
    checkpoint(store, tmp_path, 1)
    for file, said in (("clients/0@1.safetensors", "is damaged"), ("manifest", "is not what was written")):
        data = (tmp_path / file).read_bytes().rstrip(b"\n")
        changed = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
        for harmed in (*changed, data[:-1], b"", data + b"x"):
            (tmp_path / file).write_bytes(harmed)
            with refuses(f"{file}'", said, error=DamagedError):
                store.get(0) if file != "manifest" else Position.read(tmp_path / file, "x")
