"""Objects of the native library that Python owns, freed once and in the right order.

When a cycle of Python objects is collected, finalisers run in any order. So an object that others use from
their threads knows its users, and frees them before itself.
"""

from __future__ import annotations

from collections.abc import Callable


class Handle:
    """`address` of a native object until `close`, which may be called twice. `free` takes the address."""

    def __init__(self, address: int, free: Callable[[int], object]) -> None:
        self.address = address
        self._free = free
        self._users: list[Handle] = []

    def used_by(self, user: Handle) -> None:
        """`user` works with this object until it is closed itself."""
        self._users = [other for other in self._users if other.address]
        self._users.append(user)

    def close(self) -> None:
        address, self.address = self.address, 0
        if not address:
            return
        for user in self._users:
            user.close()
        self._users.clear()
        self._free(address)

    def __del__(self) -> None:
        self.close()
