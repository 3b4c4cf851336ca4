"""Where a site keeps the states of its clients: what a store is, and one in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from fedshift.core.state import ClientState


class ClientStore(Protocol):
    """Client states by client id; a client that never took part has none.

    A state that was put is not changed afterwards, nor is one that was got.
    """

    def begin(self, position: int) -> None:
        """A round begins, after which ``position`` rounds will be done."""

    def get(self, client: int) -> ClientState | None:
        """The state of one client."""

    def peek(self, client: int) -> ClientState | None:
        """As :meth:`get`, for a look that says nothing of which states will be needed."""
        return self.get(client)

    def put(self, client: int, state: ClientState) -> None:
        """Replace the state of one client."""

    def ids(self) -> Sequence[int]:
        """The clients that have a state, sorted; no state is read for that."""

    def __contains__(self, client: int) -> bool:
        """Whether a client has a state; it is not read for that."""

    def items(self) -> Iterator[tuple[int, ClientState]]:
        """Every client that has a state, in id order, one at a time, each by :meth:`peek`."""
        for client in self.ids():
            state = self.peek(client)
            assert state is not None
            yield client, state


class MemoryStore(ClientStore):
    """A store in memory, for runs without a folder."""

    def __init__(self) -> None:
        self._states: dict[int, ClientState] = {}

    def begin(self, position: int) -> None:
        """Nothing depends on it."""

    def get(self, client: int) -> ClientState | None:
        """The state of one client."""
        return self._states.get(client)

    def put(self, client: int, state: ClientState) -> None:
        """Replace the state of one client."""
        self._states[client] = state

    def ids(self) -> Sequence[int]:
        """The clients that have a state, sorted."""
        return sorted(self._states)

    def __contains__(self, client: int) -> bool:
        """Whether a client has a state."""
        return client in self._states
