"""Continuous batching: which tokens of which sequences a rank computes in its next step.

Sequences stand in one order: when they were submitted, earlier or later by their priority (`Sequence.due`), so that whoever waits long
enough comes before all that are submitted after. One step computes at most `max_tokens` tokens. Running sequences that decode come
first (one token each), then long prompts under way, which share a budget of their own, then the other prompts under way, then waiting
sequences; what is left over goes to the long prompts.

Prompts whose pictures must be encoded count as long, however short they are: text behind them is admitted. They are bounded by patches a
step besides, and while text waits only every other step encodes, the same one on all ranks: a first token waits for one encoding, not for
all that stand in front.

A waiting sequence first takes the blocks that hold the beginning of its tokens already (the prefix cache), waits while another computes
the next of them, and is admitted when blocks for the rest are available. When a running one needs a block and none is available, the last
in the order is preempted: its blocks are returned, and it is computed again later. The first in the order is never preempted for another,
so it always advances.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from runtime.blocks import BlockAllocator
from runtime.sequence import Sequence

PASSES = 64  # sequences that may be admitted past a long prompt that waits for blocks; then all wait with it


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens start .. start + length - 1 of a sequence. The last chunk of what is known samples the next token."""

    sequence: Sequence
    start: int
    length: int

    @property
    def samples(self) -> bool:
        return self.start + self.length == self.sequence.length

    @property
    def decodes(self) -> bool:
        return self.length == 1 and self.start >= self.sequence.prompt_length


@dataclass(slots=True)
class Plan:
    """One step of one rank."""

    chunks: list[Chunk] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)  # those of `chunks` that were waiting until now
    preempted: list[Sequence] = field(default_factory=list)
    preempted_for: list[Sequence] = field(default_factory=list)  # whose need of a block it was, one for each of `preempted`

    @property
    def tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    @property
    def cached_tokens(self) -> int:
        """Tokens of admitted sequences that the prefix cache had."""
        return sum(sequence.found for sequence in self.admitted)

    @property
    def long_tokens(self) -> int:
        """Prompt tokens of long prompts."""
        return sum(chunk.length for chunk in self.chunks if chunk.sequence.long and not chunk.decodes)


@dataclass(frozen=True, slots=True)
class LongPrompts:
    """What keeps long prompts from blocking others."""

    above: int  # a sequence with more tokens to compute than this is long
    tokens: int  # of a step's budget, for all long prompts together, as long as others can use the rest
    kv_share: float = 0.5  # of all blocks, that several long sequences may hold together; one alone may hold more


class Scheduler:
    """Belongs to the step loop of its rank. Decides by what it was given alone, so that equal histories give equal plans."""

    def __init__(
        self, allocator: BlockAllocator, block_size: int, max_tokens: int, max_sequences: int, max_patches: int | None = 4096, *,
        long: LongPrompts | None = None, prefix_cache: bool = False,
    ) -> None:  # fmt: skip
        self.allocator = allocator
        self.block_size = block_size
        self.max_tokens = max_tokens
        self.max_sequences = max_sequences
        self.max_patches = max_patches  # encoded in one step, one image always fits; None: pictures are like any other tokens
        self.long = long  # None: a long prompt is like any other
        self.prefix_cache = prefix_cache
        self.running: list[Sequence] = []  # in order, as those that wait
        self.waiting: list[Sequence] = []
        self._slots = list(range(max_sequences - 1, -1, -1))  # free places for recurrent states
        self._arrivals = 0
        self._encodes = False  # turns with every plan, and ranks plan together

    def submit(self, sequence: Sequence) -> None:
        self._arrivals += 1
        sequence.arrival = self._arrivals
        insort(self.waiting, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Takes a finished or cancelled sequence out and returns its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._release(sequence)

    def forget_prefixes(self) -> None:
        """What is computed from here on owes nothing to what was computed before, except within the running sequences."""
        self.allocator.forget()
        for sequence in self.running:
            sequence.publishes = False

    def schedule(self) -> Plan:
        """The next step. Blocks for its tokens are taken; the caller then computes it and calls `advance`."""
        plan = Plan()
        step = _Step(self.max_tokens)
        self._encodes = not self._encodes
        self._decode(plan, step)
        if self.long is not None:  # at most half of what the decodes leave: others must get on too
            step.for_long = min(self.long.tokens, (step.budget + 1) // 2)
        self._prefill(step, long=True, most=step.for_long)
        self._prefill(step, long=False, most=step.budget)
        if not plan.preempted:  # a victim must not come straight back
            self._admit(plan, step)
        self._prefill(step, long=True, most=step.budget)
        plan.chunks = [Chunk(s, s.cached, length) for s, length in step.granted.values()]
        return plan

    def advance(self, plan: Plan) -> None:
        """The plan's tokens are now in the cache: their full blocks are published."""
        for chunk in plan.chunks:
            sequence, before = chunk.sequence, chunk.start // self.block_size
            sequence.cached = chunk.start + chunk.length
            full = sequence.cached // self.block_size
            if self.prefix_cache and sequence.publishes and full > before:
                digests = sequence.digests_of(full, self.block_size)
                for index in range(before, full):
                    self.allocator.publish(sequence.blocks[index], digests[index])

    def _decode(self, plan: Plan, step: _Step) -> None:
        # In order, so that a victim, the last, has never been planned already.
        for sequence in [s for s in self.running if s.decoding]:
            if sequence.blocks and step.budget and self._extend(sequence, plan):  # without blocks: preempted for an earlier one
                step.grant(sequence, 1)

    def _prefill(self, step: _Step, long: bool, most: int) -> None:
        """Grants at most `most` tokens to prompts under way, in order; in every other step to those with pictures first."""
        for sequence in sorted(self.running, key=lambda s: not s.marks) if long and self._encodes else self.running:
            if most and sequence.long == long and not sequence.decoding:
                most -= step.grant(sequence, min(most, sequence.remaining - step.length(sequence)))

    def _admit(self, plan: Plan, step: _Step) -> None:
        patches = 0
        encodes = self._encodes or all(sequence.marks for sequence in self.waiting)  # no text waits
        passed: Sequence | None = None  # a long prompt that waits, while shorter ones behind it are admitted
        for sequence in list(self.waiting):
            if not step.budget or len(self.running) >= self.max_sequences:
                return
            found = self._found(sequence)
            if self._coming(sequence, found):
                sequence.held += 1
                continue  # it would compute what is being computed, and finds it in the cache a step later
            more = sequence.patches_after(len(found) * self.block_size) if self.max_patches is not None else 0
            if more and not (encodes and self._room_to_encode(patches, more, step)):
                continue  # image work waits for its own budget and does not hold up text behind it
            sequence.long = self.long is not None and (more > 0 or self._is_long(sequence, found))
            if sequence.long and (passed is not None or self._too_long_together(sequence)):
                passed = passed or sequence
                continue
            if not self._take_blocks(sequence, found):
                if not sequence.long or sequence.passed >= PASSES:
                    return
                passed = sequence
                continue
            self._start(sequence, plan, step)
            patches += more
            if passed is not None:
                passed.passed += 1

    def _room_to_encode(self, patches: int, more: int, step: _Step) -> bool:
        """Whether `more` patches fit beside `patches` of the same step, and tokens of theirs into what long prompts have left of it.

        Where a long prompt took all that, one picture goes on beside it.
        """
        assert self.max_patches is not None
        if patches and patches + more > self.max_patches:
            return False
        return self.long is None or step.for_long > 0 or not any(s.marks and not s.decoding for s in self.running)

    def _start(self, sequence: Sequence, plan: Plan, step: _Step) -> None:
        self.waiting.remove(sequence)
        sequence.slot = self._slots.pop()
        insort(self.running, sequence, key=_order)
        plan.admitted.append(sequence)
        step.grant(sequence, min(sequence.remaining, max(1, step.for_long) if sequence.long else step.budget))

    def _found(self, sequence: Sequence) -> list[int]:
        """Blocks that hold the beginning of its tokens already; at least one token is left to compute."""
        if not self.prefix_cache:
            return []
        full = (sequence.length - 1) // self.block_size
        return self.allocator.match(sequence.digests_of(full, self.block_size)[:full])

    def _coming(self, sequence: Sequence, found: list[int]) -> bool:
        """Whether a running sequence is computing the very block that is not found yet."""
        at = len(found)
        if not self.prefix_cache or at >= (sequence.length - 1) // self.block_size:
            return False
        wanted, end = sequence.digests[at : at + 1], (at + 1) * self.block_size
        return any(s.publishes and s.cached < end <= s.length and s.digests[at : at + 1] == wanted for s in self.running)

    def _is_long(self, sequence: Sequence, found: list[int]) -> bool:
        return self.long is not None and sequence.length - len(found) * self.block_size > self.long.above

    def _take_blocks(self, sequence: Sequence, found: list[int]) -> bool:
        """Blocks for all its tokens, if one more stays free for every running sequence (they grow, and a preemption costs more)."""
        allocator, needed = self.allocator, -(-(sequence.length + 1) // self.block_size) - len(found)
        reserve = len(self.running)
        if reserve and allocator.available - allocator.idle(found) < needed + reserve:
            return False
        allocator.share(found)
        fresh = allocator.allocate(needed)
        if fresh is None:
            allocator.release(found)
            return False
        sequence.blocks = found + fresh
        sequence.cached = sequence.found = len(found) * self.block_size
        return True

    def _too_long_together(self, sequence: Sequence) -> bool:
        """It would be, with the long ones that run; one alone may take what it needs."""
        assert self.long is not None
        others = sum(len(s.blocks) for s in self.running if s.long)
        return others > 0 and others + sequence.length // self.block_size > self.long.kv_share * self.allocator.blocks

    def _extend(self, sequence: Sequence, plan: Plan) -> bool:
        """Room for one more token, at the cost of later sequences. False when the sequence itself had to go."""
        while len(sequence.blocks) * self.block_size < sequence.length:
            block = self.allocator.allocate(1)
            if block is not None:
                sequence.blocks += block
                continue
            victim = self.running[-1]
            self._preempt(victim, plan)
            plan.preempted_for.append(sequence)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence, plan: Plan) -> None:
        self.running.remove(victim)
        self._release(victim)
        victim.cached = victim.found = 0
        victim.publishes = True
        victim.preemptions += 1
        plan.preempted.append(victim)
        insort(self.waiting, victim, key=_order)

    def _release(self, sequence: Sequence) -> None:
        if sequence.blocks:
            self.allocator.release(sequence.blocks)
            sequence.blocks = []
        if sequence.slot >= 0:
            self._slots.append(sequence.slot)
            sequence.slot = -1


@dataclass(slots=True)
class _Step:
    """Tokens granted so far, by sequence, and what is left of the budget."""

    budget: int
    for_long: int = 0  # of the budget, for long prompts while others wait
    granted: dict[int, tuple[Sequence, int]] = field(default_factory=dict)

    def length(self, sequence: Sequence) -> int:
        return self.granted[sequence.id][1] if sequence.id in self.granted else 0

    def grant(self, sequence: Sequence, tokens: int) -> int:
        """Gives a sequence more tokens of this step, as far as the budget goes; how many."""
        tokens = min(tokens, self.budget)
        if tokens:
            self.granted[sequence.id] = (sequence, self.length(sequence) + tokens)
            self.budget -= tokens
            self.for_long -= min(tokens, self.for_long) if sequence.long else 0
        return tokens


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.due, sequence.arrival
