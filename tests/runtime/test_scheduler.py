"""Properties of the scheduler over random loads, with the real block allocator."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.blocks import BlockAllocator
from runtime.messages import ImagePatches, Sampling, Submit
from runtime.scheduler import PASSES, LongPrompts, Plan, Scheduler
from runtime.sequence import PRIORITY_NS, Sequence

BLOCK = 4


def make_sequence(
    number: int, prompt: int, answer: int, patches: int = 0, submitted: int = 0, priority: int = 0, tokens: list[int] | None = None
) -> Sequence:
    images = [ImagePatches(bytes([number]), 1, (1, 1, patches), 0, 1)] if patches else []
    text = tokens or [7] * prompt
    return Sequence.of(
        Submit(number, f"{number:032x}", text, answer, [], Sampling(temperature=0.0), submitted, 0, images=images, priority=priority)
    )


@dataclass
class Load:
    """Sequences that arrive over time, run to their end through a scheduler."""

    scheduler: Scheduler
    pending: list[tuple[int, Sequence]]  # (step of arrival, sequence)
    plans: list[Plan] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    content: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # block and place in it -> all tokens up to there
    admitted_first: list[int] = field(default_factory=list)

    def run(self, limit: int = 5000) -> None:
        while self.pending or self.scheduler.waiting or self.scheduler.running:
            assert len(self.plans) < limit, "the load does not come to an end"
            for item in [p for p in self.pending if p[0] <= len(self.plans)]:
                self.scheduler.submit(item[1])
                self.pending.remove(item)
            self._step()

    def _step(self) -> None:
        plan = self.scheduler.schedule()
        self.plans.append(plan)
        self.check(plan)
        self.admitted_first += [s.id for s in plan.admitted if not s.preemptions]
        self.scheduler.advance(plan)
        for chunk in plan.chunks:
            self.compute(chunk.sequence, chunk.start, chunk.length)
            sequence = chunk.sequence
            if sequence.cached == sequence.length:
                sequence.tokens.append(9)
                if sequence.generated >= sequence.max_tokens:
                    self.scheduler.remove(sequence)
                    self.finished.append(sequence)

    def compute(self, sequence: Sequence, start: int, length: int) -> None:
        """Writes the chunk into its blocks, as attention would, after checking that all before it is there."""
        for position in range(start + length):
            block, tokens = sequence.blocks[position // BLOCK], sequence.tokens[: position + 1]
            place = (block, position % BLOCK)
            if position >= start:
                self.content[place] = tokens
            else:
                assert self.content[place] == tokens, "the cache holds something else than this sequence's tokens"

    def check(self, plan: Plan) -> None:
        scheduler = self.scheduler
        assert plan.tokens <= scheduler.max_tokens
        assert len(scheduler.running) <= scheduler.max_sequences
        chunked = [id(c.sequence) for c in plan.chunks]
        assert len(chunked) == len(set(chunked)), "a sequence stands in the batch twice"
        lent = [block for s in scheduler.running for block in s.blocks]
        written = [block for s in scheduler.running for block in s.blocks[s.found // BLOCK :]]
        assert len(written) == len(set(written)), "two sequences write to one block"
        assert len(set(lent)) == scheduler.allocator.used, "blocks leak"
        for chunk in plan.chunks:
            assert chunk.sequence in scheduler.running
            assert chunk.start == chunk.sequence.cached and chunk.length >= 1
            assert chunk.start + chunk.length <= len(chunk.sequence.blocks) * BLOCK
        if scheduler.running or scheduler.waiting:
            assert plan.chunks, "there is work but the step computes nothing"


LONG = LongPrompts(above=20, tokens=6)
FEATURES = st.tuples(st.booleans(), st.sampled_from([None, LONG]))  # prefix cache, budget of long prompts
PATCHES = st.sampled_from([None, 25])  # budget of pictures
Request = tuple[int, int, int, int]  # step of arrival, prompt, answer, image patches
REQUESTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 40), st.integers(1, 24), st.sampled_from([0, 0, 3, 20])), min_size=1, max_size=14
)


@settings(max_examples=120, deadline=None)
@given(REQUESTS, st.integers(17, 60), st.integers(4, 40), st.integers(1, 4), FEATURES, PATCHES)
def test_every_load_ends_within_budget_and_without_leaks(
    requests: list[Request], blocks: int, budget: int, most: int, features: tuple[bool, LongPrompts | None], patches: int | None
) -> None:
    cache, long = features
    scheduler = Scheduler(BlockAllocator(blocks), BLOCK, budget, most, max_patches=patches, prefix_cache=cache, long=long)
    pending = [(arrival, make_sequence(i, prompt, answer, image)) for i, (arrival, prompt, answer, image) in enumerate(requests)]
    load = Load(scheduler, pending)
    load.run()
    assert len(load.finished) == len(requests)
    assert scheduler.allocator.available == blocks


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40), st.integers(1, 24)), min_size=2, max_size=14), st.integers(17, 40))
def test_text_is_admitted_in_order_of_arrival(requests: list[tuple[int, int, int]], blocks: int) -> None:
    ordered = sorted(requests)
    load = Load(
        Scheduler(BlockAllocator(blocks), BLOCK, 16, 3),
        [(arrival, make_sequence(i, prompt, answer)) for i, (arrival, prompt, answer) in enumerate(ordered)],
    )
    load.run()
    assert load.admitted_first == sorted(load.admitted_first)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 24)), min_size=2, max_size=10), st.integers(0, 9), st.integers(1, 20), FEATURES
)
def test_cancelling_returns_the_blocks(
    requests: list[tuple[int, int]], victim: int, after: int, features: tuple[bool, LongPrompts | None]
) -> None:
    scheduler = Scheduler(BlockAllocator(40), BLOCK, 16, 3, prefix_cache=features[0], long=features[1])
    sequences = [make_sequence(i, prompt, answer) for i, (prompt, answer) in enumerate(requests)]
    for sequence in sequences:
        scheduler.submit(sequence)
    load = Load(scheduler, [])
    for _ in range(after):
        load._step()
    target = sequences[victim % len(sequences)]
    if target not in load.finished:
        scheduler.remove(target)
        load.finished.append(target)
    load.run()
    assert len(load.finished) == len(sequences)
    assert scheduler.allocator.available == 40


def test_a_long_prompt_is_computed_in_chunks_beside_decodes() -> None:
    scheduler = Scheduler(BlockAllocator(64), BLOCK, 8, 4)
    short, long = make_sequence(1, 2, 20), make_sequence(2, 30, 2)
    scheduler.submit(short)
    load = Load(scheduler, [])
    load._step()
    scheduler.submit(long)
    for _ in range(4):
        load._step()
    lengths = [[c.length for c in plan.chunks if c.sequence is long] for plan in load.plans[1:]]
    assert lengths == [[7], [7], [7], [7]]  # 8 tokens a step less the one that decodes
    assert all(any(c.sequence is short and c.length == 1 for c in plan.chunks) for plan in load.plans[1:])


def test_the_youngest_is_preempted_and_comes_back_before_those_behind_it() -> None:
    scheduler = Scheduler(BlockAllocator(8), BLOCK, 16, 4)
    old, young, next_up = make_sequence(1, 8, 17), make_sequence(2, 8, 17), make_sequence(3, 8, 2)
    for sequence in (old, young, next_up):
        scheduler.submit(sequence)
    load = Load(scheduler, [])
    load.run()
    victims = [s.id for plan in load.plans for s in plan.preempted]
    assert victims and set(victims) == {2}
    assert [s.id for s in load.finished] == [1, 2, 3]


def test_image_work_over_its_budget_does_not_hold_up_text_behind_it() -> None:
    scheduler = Scheduler(BlockAllocator(64), BLOCK, 64, 8, max_patches=30)
    for number, patches in ((1, 20), (2, 20), (3, 0)):
        scheduler.submit(make_sequence(number, 6, 4, patches))
    plan = scheduler.schedule()
    assert [s.id for s in plan.admitted] == [1, 3]
    scheduler.advance(plan)
    assert [s.id for s in scheduler.waiting] == [2]


def test_one_image_above_the_budget_is_still_admitted() -> None:
    scheduler = Scheduler(BlockAllocator(64), BLOCK, 64, 8, max_patches=30)
    scheduler.submit(make_sequence(1, 6, 4, 100))
    assert [s.id for s in scheduler.schedule().admitted] == [1]


def burst(max_patches: int | None, text_every: int = 1) -> tuple[Load, list[int]]:
    """Ten pictures of 12 tokens at once, and a text of 4 every so many steps. The load, and how many steps every text took to its end."""
    scheduler = Scheduler(BlockAllocator(200), BLOCK, 16, 16, max_patches, long=LongPrompts(above=64, tokens=8))
    pictures = [(0, make_sequence(number, 12, 1, patches=48)) for number in range(10)]
    texts = [(step, make_sequence(100 + step, 4, 1, submitted=1)) for step in range(0, 30, text_every)]
    load = Load(scheduler, pictures + texts)
    load.run()
    last = {c.sequence.id: step for step, plan in enumerate(load.plans) for c in plan.chunks}
    return load, [last[100 + step] - step for step in range(0, 30, text_every)]


def encodings(load: Load) -> list[int]:
    """Sequences admitted with pictures, step by step."""
    return [sum(s.id < 100 for s in plan.admitted) for plan in load.plans]


def test_text_waits_for_no_picture_in_front_of_it() -> None:
    load, waits = burst(max_patches=48)
    assert max(waits) == 0, "every text is computed in the step after it came"
    in_line, longer = burst(max_patches=None)
    assert max(longer) >= 5, "without a budget it stands in line"
    assert len(load.finished) == len(in_line.finished) == 40


def test_pictures_get_on_while_text_keeps_coming() -> None:
    load, _ = burst(max_patches=48)
    # One picture has 12 tokens of 8 a step at most, and every other step encodes: a picture every other step.
    assert encodings(load)[:20] == [1, 0] * 10


def test_a_picture_does_not_wait_for_a_long_prompt_to_end() -> None:
    scheduler = Scheduler(BlockAllocator(600), BLOCK, 16, 16, 48, long=LongPrompts(above=64, tokens=8))
    load = Load(scheduler, [(0, make_sequence(1, 1000, 1)), (3, make_sequence(2, 12, 1, patches=48))])
    load.run()
    assert [s.id for s in load.finished] == [2, 1]
    assert [step for step, plan in enumerate(load.plans) if any(c.sequence.id == 2 for c in plan.chunks)][-1] <= 8


def test_without_text_every_step_encodes() -> None:
    load, _ = burst(max_patches=48, text_every=30)
    assert sum(encodings(load)[:11]) == 10


# -- prefix cache -------------------------------------------------------------------------------------------------------------------


def cached_load(*prompts: list[int], blocks: int = 64) -> Load:
    """The prompts one after the other, each with two answer tokens."""
    load = Load(Scheduler(BlockAllocator(blocks), BLOCK, 64, 4, prefix_cache=True), [])
    for number, prompt in enumerate(prompts):
        load.scheduler.submit(make_sequence(number, 0, 2, tokens=prompt))
        load.run()
    return load


def computed(load: Load, number: int) -> int:
    """Prompt tokens computed for a sequence."""
    return sum(c.length for plan in load.plans for c in plan.chunks if c.sequence.id == number and not c.decodes)


def test_a_prompt_that_begins_alike_is_computed_from_where_it_differs() -> None:
    first, second = list(range(14)), [*range(10), 50, 51]
    load = cached_load(first, second)
    assert computed(load, 0) == 14
    assert computed(load, 1) == 12 - 8  # two full blocks are alike
    assert [plan.cached_tokens for plan in load.plans if plan.admitted] == [0, 8]


def test_of_an_equal_prompt_one_token_is_computed_and_answers_are_found_too() -> None:
    prompt = list(range(16))
    load = cached_load(prompt, prompt, [*prompt, 9, 9, 30])
    assert computed(load, 1) == 4  # the last block: its last token must be computed, and blocks are not written twice
    assert load.finished[0].tokens[16:] == [9, 9]
    assert computed(load, 2) == 3


def test_a_sequence_that_still_runs_shares_its_blocks() -> None:
    load = cached_load()
    load.scheduler.submit(make_sequence(1, 0, 20, tokens=list(range(12))))
    load._step()
    load.scheduler.submit(make_sequence(2, 0, 20, tokens=[*range(12), 40]))
    load._step()
    assert load.plans[1].cached_tokens == 12
    one, two = load.scheduler.running
    assert one.blocks[:3] == two.blocks[:3]
    load.scheduler.remove(one)
    load.run()
    assert load.scheduler.allocator.available == 64


def test_of_equal_prompts_that_come_together_one_is_computed_and_others_behind_are_not_held_up() -> None:
    scheduler = Scheduler(BlockAllocator(64), BLOCK, 64, 4, prefix_cache=True)
    for number in range(3):
        scheduler.submit(make_sequence(number, 0, 2, tokens=list(range(12))))
    scheduler.submit(make_sequence(3, 0, 2, tokens=[*range(4), 60, 61]))
    scheduler.submit(make_sequence(4, 0, 2, tokens=list(range(50, 57))))
    load = Load(scheduler, [])
    load._step()
    assert [s.id for s in load.plans[0].admitted] == [0, 4], "nothing is found before it is computed"
    load._step()
    assert [(s.id, s.found, s.held) for s in load.plans[1].admitted] == [(1, 8, 1), (2, 8, 1)]
    load.run()
    assert [s.found for s in load.finished if s.id == 3] == [4]
    assert sum(plan.cached_tokens for plan in load.plans) == 8 + 8 + 4


def test_a_prompt_is_not_held_for_blocks_that_never_come() -> None:
    scheduler = Scheduler(BlockAllocator(64), BLOCK, 4, 4, prefix_cache=True)
    first, second = (make_sequence(number, 0, 2, tokens=list(range(40))) for number in range(2))
    scheduler.submit(first)
    load = Load(scheduler, [])
    load._step()
    scheduler.submit(second)
    scheduler.forget_prefixes()  # what the first one computes from here on is not offered
    load.run()
    assert load.plans[-1].chunks and second.found == 0


def test_a_preempted_sequence_finds_what_it_had_computed() -> None:
    load = Load(Scheduler(BlockAllocator(8), BLOCK, 16, 4, prefix_cache=True), [])
    for number, start in ((1, 0), (2, 100)):
        load.scheduler.submit(make_sequence(number, 0, 17, tokens=list(range(start, start + 8))))
    load.run()
    again = [s.found for plan in load.plans for s in plan.admitted if s.preemptions]
    assert again and max(again) > 0


def test_after_forgetting_everything_is_computed_anew() -> None:
    load = cached_load(list(range(12)))
    running = make_sequence(5, 0, 20, tokens=list(range(12)))
    load.scheduler.submit(running)
    load._step()
    load.scheduler.forget_prefixes()
    load.run()
    load.scheduler.submit(make_sequence(6, 0, 2, tokens=running.tokens[:30]))
    load._step()
    assert load.plans[-1].cached_tokens == 0, "what began before must not be found after"


def test_an_image_inside_the_found_prefix_is_not_encoded() -> None:
    def turn(number: int, tokens: list[int]) -> Sequence:
        images = [ImagePatches(b"red", 1, (1, 2, 2), 2, 4), ImagePatches(b"blue", 1, (1, 4, 4), 8, 4)]
        return Sequence.of(Submit(number, "0" * 32, tokens, 1, [], Sampling(temperature=0.0), 0, 0, images=images))

    load = cached_load()
    first, second = turn(1, [1, 1, *[9] * 4, 1, 1, *[9] * 4, 1]), turn(2, [1, 1, *[9] * 4, 1, 1, *[9] * 4, 1, 1, 1])
    load.scheduler.submit(first)
    load.run()
    assert second.patches_after(0) == 4 + 16
    load.scheduler.submit(second)
    load.scheduler.schedule()
    assert second.cached == 12 and second.images_after(second.cached) == []
    assert [i.data for i in second.images_after(8)] == [b"blue"]


# -- order --------------------------------------------------------------------------------------------------------------------------


def test_a_lower_priority_number_goes_first_and_waiting_makes_up_for_it() -> None:
    scheduler = Scheduler(BlockAllocator(64), BLOCK, 8, 1)
    patient = make_sequence(1, 4, 1, submitted=0, priority=2)
    for sequence in (
        patient,
        make_sequence(2, 4, 1, submitted=10),
        make_sequence(3, 4, 1, submitted=20, priority=-1),
        make_sequence(4, 4, 1, submitted=2 * PRIORITY_NS + 30),
    ):
        scheduler.submit(sequence)
    load = Load(scheduler, [])
    load.run()
    assert [s.id for s in load.finished] == [3, 2, 1, 4]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(-3, 3), st.integers(1, 12), st.integers(1, 6)), min_size=2, max_size=20))
def test_nobody_starves(requests: list[tuple[int, int, int, int]]) -> None:
    """Whoever was submitted so much later that no priority makes up for it finishes its first token later."""
    second = PRIORITY_NS // 2
    load = Load(Scheduler(BlockAllocator(24), BLOCK, 16, 2), [])
    sequences = [
        make_sequence(number, prompt, answer, submitted=at * second, priority=priority)
        for number, (at, priority, prompt, answer) in enumerate(sorted(requests))
    ]
    load.pending = [(sequence.mark // second, sequence) for sequence in sequences]
    load.run()
    place = {number: index for index, number in enumerate(load.admitted_first)}
    assert len(load.finished) == len(sequences)
    for one in sequences:
        for other in sequences:
            if one.mark <= other.mark and one.due < other.due:
                assert place[one.id] < place[other.id]


def test_the_least_urgent_is_preempted() -> None:
    load = Load(Scheduler(BlockAllocator(8), BLOCK, 16, 4), [])
    for number, priority in ((1, 3), (2, 0)):
        load.scheduler.submit(make_sequence(number, 8, 17, priority=priority))
    load.run()
    victims = [(s.id, need.id) for plan in load.plans for s, need in zip(plan.preempted, plan.preempted_for, strict=True)]
    assert victims and {victim for victim, _ in victims} == {1}


# -- long prompts -------------------------------------------------------------------------------------------------------------------


def test_a_long_prompt_takes_its_own_budget_and_what_others_leave() -> None:
    scheduler = Scheduler(BlockAllocator(200), BLOCK, 20, 8, long=LongPrompts(above=40, tokens=6))
    long = make_sequence(1, 120, 2)
    scheduler.submit(long)
    load = Load(scheduler, [])
    load._step()
    assert long.long and load.plans[-1].long_tokens == 20, "nobody else is there"
    for number in range(2, 8):
        scheduler.submit(make_sequence(number, 12, 1))
    load._step()
    assert load.plans[-1].long_tokens == 6
    assert [s.id for s in load.plans[-1].admitted] == [2, 3]
    load.run()
    assert [s.id for s in load.finished][-1] == 1


def test_without_the_budget_the_same_prompt_holds_the_others_up() -> None:
    load = Load(Scheduler(BlockAllocator(200), BLOCK, 20, 8), [])
    load.scheduler.submit(make_sequence(1, 120, 2))
    load._step()
    load.scheduler.submit(make_sequence(2, 12, 1))
    load._step()
    assert load.plans[-1].admitted == []


def test_short_prompts_pass_a_long_one_that_waits_for_blocks_but_not_for_ever() -> None:
    scheduler = Scheduler(BlockAllocator(40), BLOCK, 200, 4, long=LongPrompts(above=40, tokens=50))
    load = Load(scheduler, [])
    scheduler.submit(make_sequence(0, 8, 30))
    load._step()
    long = make_sequence(1, 150, 1)
    scheduler.submit(long)
    number = 2
    while long in scheduler.waiting:
        assert len(load.plans) < 3 * PASSES
        while len(scheduler.waiting) < 3:
            scheduler.submit(make_sequence(number, 8, 4))
            number += 1
        load._step()
    assert PASSES <= long.passed < PASSES + 4


def test_long_prompts_do_not_take_all_blocks_together() -> None:
    scheduler = Scheduler(BlockAllocator(40), BLOCK, 200, 4, long=LongPrompts(above=40, tokens=50))
    for number, prompt in ((1, 60), (2, 60), (3, 8)):
        scheduler.submit(make_sequence(number, prompt, 2))
    plan = scheduler.schedule()
    assert [s.id for s in plan.admitted] == [1, 3]
