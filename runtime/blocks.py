"""The KV blocks of a rank: who holds them, and which of those that nobody holds still have content worth keeping.

A block is free (its content means nothing), lent to one sequence or more, or kept: lent to nobody, but its content is published under
the digest of the tokens it was computed from, for the next prompt that begins with them. Kept blocks count as available; when the free
ones are used up, those that were left longest ago are taken.
"""

from __future__ import annotations

from collections.abc import Sequence


class BlockAllocator:
    """Lends block ids from a fixed pool. Not thread-safe: it belongs to the step loop of its rank."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        # Popped from the end: the lowest ids first, the last returned first (its pages are warm).
        self._free = list(range(blocks - 1, -1, -1))
        self._kept: dict[int, None] = {}  # in order of return, the oldest first
        self._holders = [0] * blocks
        self._digests: dict[int, bytes] = {}  # of published blocks
        self._published: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        """Blocks that can be lent: free and kept ones."""
        return len(self._free) + len(self._kept)

    @property
    def used(self) -> int:
        return self.blocks - self.available

    @property
    def kept(self) -> int:
        return len(self._kept)

    def allocate(self, count: int) -> list[int] | None:
        """`count` block ids for new content, or None (and nothing taken) when fewer are available."""
        if count > self.available:
            return None
        # In ascending order: attention reads a run of blocks in place, and a kept chain is given up from its end.
        taken = sorted(self._free.pop() if self._free else self._evict() for _ in range(count))
        for block in taken:
            self._holders[block] = 1
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """One holder returns blocks. ValueError on a block that is not lent: two sequences would share it silently.

        The last come first, so that of a kept chain the end is given up before its beginning.
        """
        for block in reversed(blocks):
            if not self._holders[block]:
                raise ValueError(f"KV block {block} is returned but was not lent")
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._digests:
                self._kept[block] = None
            else:
                self._free.append(block)

    def match(self, digests: Sequence[bytes]) -> list[int]:
        """The blocks that hold the longest beginning of `digests`. They are not lent by that: `share` them before anything else."""
        found = []
        for digest in digests:
            block = self._published.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` are lent to nobody: sharing them makes so many fewer available."""
        return sum(not self._holders[block] for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Lends published blocks to one more sequence, which must not write to them."""
        for block in blocks:
            self._kept.pop(block, None)
            self._holders[block] += 1

    def publish(self, block: int, digest: bytes) -> None:
        """The lent block is full, and its content is what `digest` stands for. Of two equal blocks the first stays published."""
        if digest not in self._published and block not in self._digests:
            self._published[digest] = block
            self._digests[block] = digest

    def forget(self) -> None:
        """Nothing computed so far is given to another sequence any more."""
        self._published.clear()
        self._digests.clear()
        self._free += reversed(self._kept)
        self._kept.clear()

    def _evict(self) -> int:
        block = next(iter(self._kept))
        del self._kept[block]
        del self._published[self._digests.pop(block)]
        return block
