"""How many threads read experts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftagent.engine.experts.readers import DIRECT_READERS, MOST_READERS, Reading, choose_readers

GIB = 2**30
SCATTERED = Reading("safetensors", banks=40 * GIB, buffer=GIB // 8)


def test_rows_that_go_straight_into_place_need_no_memory() -> None:
    found = choose_readers(Reading("FTW", 40 * GIB, 0), cores=2, free=0)
    assert found.threads == DIRECT_READERS
    assert found.how == "40.00 GiB of experts from FTW, straight into place, 4 readers"


def test_memory_to_spare_is_read_by_every_core() -> None:
    found = choose_readers(SCATTERED, cores=8, free=60 * GIB)
    assert found == (8, "40.00 GiB of experts from safetensors, 8 readers with 128 MiB each")


def test_a_host_with_little_memory_reads_serially_and_says_why() -> None:
    found = choose_readers(SCATTERED, cores=8, free=40 * GIB + GIB // 7)
    assert found.threads == 1
    assert found.how.endswith("one reader with 128 MiB each; 40.14 GiB of memory are free")
    assert choose_readers(SCATTERED, cores=8, free=40 * GIB + GIB // 2).threads == 4


def test_the_users_own_number_counts_as_far_as_memory_bears_it() -> None:
    assert choose_readers(Reading("FTW", GIB, 0), 2, 0, asked=9).threads == 9
    assert choose_readers(SCATTERED, 2, 60 * GIB, asked=20).threads == 20
    assert choose_readers(SCATTERED, 2, 41 * GIB, asked=20).threads == 8


@given(st.integers(0, 2**40), st.integers(1, 2**36), st.integers(0, 256), st.integers(0, 2**41))
def test_buffers_never_take_more_than_is_free_but_one_reader_there_is(
    banks: int, buffer: int, cores: int, free: int
) -> None:
    threads = choose_readers(Reading("safetensors", banks, buffer), cores, free).threads
    assert 1 <= threads <= MOST_READERS
    assert threads == 1 or banks + threads * buffer <= free
