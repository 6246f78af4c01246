"""The prefix tree against a brute-force twin: a list of token sequences, and pages with contents."""

from __future__ import annotations

import random
from bisect import insort

import pytest

from ftagent.engine.context.pages import PagePool
from ftagent.engine.context.tree import Anchor, Line, Node, PrefixTree, token_key

SIZE = 4


class Paper:
    """Pages with their contents, so that a page that holds something else than the path says is seen."""

    def __init__(self, total: int) -> None:
        self.pool = PagePool(total, SIZE)
        self.content: dict[int, list[int]] = {}

    def write(self, tokens: list[int]) -> list[int]:
        pages = self.pool.allocate(-(-len(tokens) // SIZE))
        for index, page in enumerate(pages):
            self.content[page] = tokens[index * SIZE : (index + 1) * SIZE]
        return pages


def common(first: list[int], second: list[int]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def mark(node: Node, position: int) -> Anchor:
    for anchor in node.anchors:
        if anchor.position == position:
            return anchor
    anchor = Anchor(position, node, None, Line(0))
    insort(node.anchors, anchor, key=lambda other: other.position)
    return anchor


@pytest.mark.parametrize("seed", range(20))
def test_equals_a_list_of_sequences(seed: int) -> None:
    dice = random.Random(seed)
    paper = Paper(4000)
    tree = PrefixTree(paper.pool)
    known: list[list[int]] = []
    for _ in range(60):
        stem = dice.choice(known) if known and dice.random() < 0.8 else []
        tokens = stem[: dice.randrange(len(stem) + 1)] + dice.choices(range(-2, 2), k=dice.randrange(1, 14))
        longest = max((common(tokens, other) for other in known), default=0)
        path = tree.walk(token_key(tokens), len(tokens))
        assert path.matched == longest
        pages = path.pages(longest, SIZE)
        read = [token for page in pages for token in paper.content[page]][:longest]
        assert read == tokens[:longest]
        own = paper.write(tokens)
        mark(tree.add(token_key(tokens), len(tokens), own), len(tokens))
        paper.pool.release(own)
        known.append(tokens)
        tree.check_integrity()
        paper.pool.check_integrity()
    tree.clear()
    assert paper.pool.free_count == paper.pool.total


@pytest.mark.parametrize("seed", range(20))
def test_trimming_leaves_what_is_still_anchored(seed: int) -> None:
    dice = random.Random(seed)
    paper = Paper(4000)
    tree = PrefixTree(paper.pool)
    anchors: dict[tuple[int, ...], Anchor] = {}
    for _ in range(150):
        if anchors and dice.random() < 0.45:
            anchor = anchors.pop(dice.choice(list(anchors)))
            anchor.node.anchors.remove(anchor)
            tree.trim(anchor.node)
        else:
            stem = dice.choice([*anchors, ()])
            tokens = [*stem[: dice.randrange(len(stem) + 1)], *dice.choices(range(3), k=dice.randrange(1, 9))]
            own = paper.write(tokens)
            anchors[tuple(tokens)] = mark(tree.add(token_key(tokens), len(tokens), own), len(tokens))
            paper.pool.release(own)
        tree.check_integrity()
        for kept, anchor in anchors.items():
            path = tree.walk(token_key(kept), len(kept))
            assert path.matched == len(kept)
            assert path.deepest(len(kept)) is anchor
            pages = path.pages(len(kept), SIZE)
            assert [token for page in pages for token in paper.content[page]][: len(kept)] == list(kept)
    for anchor in anchors.values():
        anchor.node.anchors.remove(anchor)
        tree.trim(anchor.node)
    assert not list(tree.nodes())
    assert paper.pool.free_count == paper.pool.total


def test_pages_of_a_continued_prefix_are_taken_over_not_doubled() -> None:
    paper = Paper(16)
    tree = PrefixTree(paper.pool)
    tokens = list(range(30))
    pages = paper.write(tokens)
    for length in (3, 6, 8, 17, 30):
        mark(tree.add(token_key(tokens), length, pages), length)
    (node,) = tree.nodes()
    assert node.pages == pages
    assert [paper.pool.references(page) for page in pages] == [2] * 8
    assert [anchor.position for anchor in node.anchors] == [3, 6, 8, 17, 30]


def test_a_look_up_reads_the_match_only() -> None:
    """The edges compared are those of the path, however many branches there are beside it."""
    paper = Paper(5000)
    tree = PrefixTree(paper.pool)
    stem = list(range(100, 140))
    for branch in range(400):
        tokens = [*stem[: 10 * (branch % 4 + 1)], 1000 + branch, 7]
        own = paper.write(tokens)
        mark(tree.add(token_key(tokens), len(tokens), own), len(tokens))
    path = tree.walk(token_key([*stem, 1399, 8]), 42)
    assert path.matched == 41
    assert len(path.nodes) <= 5
