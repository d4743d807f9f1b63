"""The block allocator against a model of itself: nothing is both free and used, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from runtime.blocks import BlockAllocator


class Blocks(RuleBasedStateMachine):
    """Sequences that take, share, publish and return blocks in any order. `content[block]` is what was last written to it."""

    holdings: Bundle[list[int]] = Bundle("holdings")

    @initialize(blocks=st.integers(1, 12))
    def start(self, blocks: int) -> None:
        self.allocator = BlockAllocator(blocks)
        self.held: list[list[int]] = []
        self.content: dict[int, bytes] = {}
        self.writes = 0

    @rule(target=holdings, count=st.integers(0, 5))
    def allocate(self, count: int) -> list[int]:
        before = self.allocator.available
        taken = self.allocator.allocate(count)
        assert (taken is None) == (count > before)
        if taken is None:
            return []
        assert not set(taken) & {block for held in self.held for block in held}, "a block that is in use was lent"
        for block in taken:
            self.content.pop(block, None)  # it will be overwritten
        self.held.append(taken)
        return taken

    @rule(holding=holdings, digest=st.integers(0, 6))
    def publish(self, holding: list[int], digest: int) -> None:
        if holding in self.held and holding and holding[0] not in self.content:
            name = bytes([digest])
            self.content[holding[0]] = name
            self.allocator.publish(holding[0], name)

    @rule(target=holdings, digests=st.lists(st.integers(0, 6), max_size=3))
    def share(self, digests: list[int]) -> list[int]:
        names = [bytes([digest]) for digest in digests]
        found = list(dict.fromkeys(self.allocator.match(names)))
        assert [self.content[block] for block in self.allocator.match(names)] == names[: len(self.allocator.match(names))]
        idle, before = self.allocator.idle(found), self.allocator.available
        self.allocator.share(found)
        assert self.allocator.available == before - idle
        self.held.append(found)
        return found

    @rule(holding=consumes(holdings))
    def release(self, holding: list[int]) -> None:
        if any(holding is one for one in self.held):
            self.held = [one for one in self.held if one is not holding]
            self.allocator.release(holding)

    @rule()
    def forget(self) -> None:
        self.allocator.forget()
        self.content = {}
        assert self.allocator.kept == 0

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "allocator"):
            used = {block for held in self.held for block in held}
            assert self.allocator.used == len(used)
            assert self.allocator.used + self.allocator.available == self.allocator.blocks


TestBlocks: Any = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_block_is_lent_once() -> None:
    allocator = BlockAllocator(10)
    first, second = allocator.allocate(4), allocator.allocate(6)
    assert first == [0, 1, 2, 3] and second is not None and sorted(first + second) == list(range(10))
    assert allocator.allocate(1) is None and allocator.available == 0 and allocator.used == 10
    allocator.release(first)
    assert allocator.available == 4
    with pytest.raises(ValueError, match="not lent"):
        allocator.release(first)


def test_the_longest_unused_is_given_up_first_and_of_a_chain_its_end() -> None:
    allocator = BlockAllocator(4)
    old, new = allocator.allocate(2), allocator.allocate(2)
    assert old is not None and new is not None
    for block, name in zip(old + new, (b"a", b"ab", b"x", b"xy"), strict=True):
        allocator.publish(block, name)
    allocator.release(old)
    allocator.release(new)
    assert (allocator.available, allocator.kept) == (4, 4)
    assert allocator.allocate(1) == [old[1]]
    assert allocator.match([b"a", b"ab"]) == [old[0]]
    assert allocator.allocate(2) == [old[0], new[1]]
    assert allocator.match([b"x", b"xy"]) == [new[0]]


def test_a_used_block_is_looked_up_too_and_stays_until_its_last_holder_leaves() -> None:
    allocator = BlockAllocator(2)
    mine = allocator.allocate(1)
    assert mine is not None
    allocator.publish(mine[0], b"a")
    allocator.share(allocator.match([b"a"]))
    allocator.release(mine)
    assert (allocator.used, allocator.kept) == (1, 0)
    allocator.release(mine)
    assert (allocator.used, allocator.kept) == (0, 1)
