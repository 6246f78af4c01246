"""Native objects are freed once, and users before what they use."""

from __future__ import annotations

import gc

from ftagent.engine.machine.handles import Handle


class Owner:
    """What a Python class around a native object looks like; `ring` makes a cycle of owners."""

    def __init__(self, native: Handle) -> None:
        self.native = native
        self.ring: object = None


def test_users_are_freed_before_what_they_use() -> None:
    freed: list[int] = []
    link, conductor = Handle(1, freed.append), Handle(2, freed.append)
    link.used_by(conductor)
    link.close()
    conductor.close()
    link.close()
    assert freed == [2, 1]


def test_a_cycle_that_is_collected_keeps_the_order() -> None:
    for turn in range(2):
        freed: list[int] = []
        owners = [Owner(Handle(number, freed.append)) for number in (1, 2, 3)]
        for part in owners[:2]:
            part.native.used_by(owners[2].native)
        chain = owners if turn else owners[::-1]
        for owner, following in zip(chain, chain[1:] + chain[:1], strict=True):
            owner.ring = following
        del owners, chain, part, owner, following
        gc.collect()
        assert freed[0] == 3
        assert sorted(freed) == [1, 2, 3]


def test_what_was_closed_is_no_user_any_more() -> None:
    freed: list[int] = []
    executor = Handle(1, freed.append)
    for number in (2, 3, 4):
        user = Handle(number, freed.append)
        executor.used_by(user)
        user.close()
    executor.close()
    assert freed == [2, 3, 4, 1]
