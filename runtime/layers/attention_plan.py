"""Where the tokens of a batch are written in the paged cache, and what each of them may see: computed once a step for all layers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from runtime.batch import ForwardBatch
from runtime.kv import KVCache

Pages = Tensor | slice  # block ids; a slice when they lie in one ascending run, and can be read in place

# A sequence whose context has more bytes (in one layer) is attended alone when its blocks lie in one run: its context is then read in
# place. Below, copying all contexts into one padded attention costs less than one more call: on a CPU a call costs about 15 us, and
# copying 128 KiB about as much.
ALONE_FROM = 128 << 10


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """A chunk of several tokens of one sequence."""

    start: int  # first token, index into T
    stop: int
    context: int  # tokens visible to the last of them
    pages: Pages | None  # the sequence's blocks, when part of the context is in the cache; None: it is all in this chunk
    mask: Tensor | None  # [chunk, context] True where visible; None: causal within the chunk

    def visible(self, device: torch.device) -> Tensor:
        """The mask, written out where it is only implied."""
        return _visible(self.context - self.stop + self.start, self.context, device) if self.mask is None else self.mask

    def within(self, window: int, device: torch.device) -> PrefillSpan:
        if window >= self.context:
            return self
        before = self.context - self.stop + self.start
        return replace(self, mask=_visible(before, self.context, device, window))


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Chunks of one token, of as many sequences: attended together, padded to the longest context."""

    tokens: Tensor | slice  # [N] indices into T
    count: int
    pages: Pages  # [N * width], the table of each sequence padded with its first block
    context: int  # longest context
    mask: Tensor | None  # [1, N, 1, context] 0 where visible, else -inf; None: all contexts are equally long
    contexts: tuple[int, ...] = ()

    def within(self, window: int, dtype: torch.dtype, device: torch.device) -> DecodeGroup:
        return self if window >= self.context else replace(self, mask=_padding(self.contexts, dtype, device, window))


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Every token of the batch is in exactly one span or group."""

    slots: Tensor  # [T] positions in the pool of blocks * block_size
    prefill: list[PrefillSpan]
    decode: list[DecodeGroup]
    dtype: torch.dtype = torch.float32  # of masks
    _windows: dict[int, AttentionPlan] = field(default_factory=dict)

    def within(self, window: int) -> AttentionPlan:
        """The same tokens, each of which sees only the last `window`, itself included. Made once for all layers of that window."""
        found = self._windows.get(window)
        if found is None:
            prefill = [span.within(window, self.slots.device) for span in self.prefill]
            decode = [group.within(window, self.dtype, self.slots.device) for group in self.decode]
            found = self._windows[window] = AttentionPlan(self.slots, prefill, decode, self.dtype)
        return found

    @property
    def alike(self) -> DecodeGroup | None:
        """The one group that all tokens of the batch belong to, in order; None: there is no such group."""
        if self.prefill or len(self.decode) != 1 or self.decode[0].count != self.slots.shape[0]:
            return None
        return self.decode[0]


@dataclass(frozen=True, slots=True)
class _Single:
    """A chunk of one token."""

    token: int
    context: int
    pages: list[int]


def plan_attention(batch: ForwardBatch, cache: KVCache, device: torch.device) -> AttentionPlan:
    """Raises ValueError when a block table is too short for its sequence."""
    starts, cached, size = batch.query_starts.tolist(), batch.cached.tolist(), cache.block_size
    slots: list[int] = []
    prefill: list[PrefillSpan] = []
    decode: list[DecodeGroup] = []
    together: list[_Single] = []
    for index, table in enumerate(batch.block_tables):
        start, stop, before = starts[index], starts[index + 1], cached[index]
        context = before + stop - start
        need = cache.blocks_for(context)
        if table.shape[0] < need:
            raise ValueError(f"sequence {index} of the batch needs {need} KV blocks for {context} tokens, its table has {table.shape[0]}")
        pages = table[:need].tolist()
        slots += [pages[p // size] * size + p % size for p in range(before, context)]
        if stop - start > 1:
            prefill.append(_span(start, stop, before, context, pages, device))
        elif stop > start:
            single = _Single(start, context, pages)
            if context * cache.token_bytes > ALONE_FROM and _is_run(pages):
                decode.append(_group([single], cache.dtype, device))
            else:
                together.append(single)
    if together:
        decode.append(_group(together, cache.dtype, device))
    return AttentionPlan(torch.tensor(slots, dtype=torch.int64, device=device), prefill, decode, cache.dtype)


def _is_run(pages: list[int]) -> bool:
    return pages[-1] - pages[0] == len(pages) - 1 and pages == list(range(pages[0], pages[-1] + 1))


def _pages(pages: list[int], device: torch.device) -> Pages:
    return slice(pages[0], pages[-1] + 1) if _is_run(pages) else torch.tensor(pages, device=device)


def _span(start: int, stop: int, before: int, context: int, pages: list[int], device: torch.device) -> PrefillSpan:
    if before == 0:
        return PrefillSpan(start, stop, context, None, None)
    return PrefillSpan(start, stop, context, _pages(pages, device), _visible(before, context, device))


def _visible(before: int, context: int, device: torch.device, window: int | None = None) -> Tensor:
    """[context - before, context] True where a token of the chunk sees a token of the context."""
    seen, seeing = torch.arange(context), torch.arange(before, context).unsqueeze(1)
    visible = seen <= seeing
    return (visible if window is None else visible & (seen > seeing - window)).to(device)


def _group(members: list[_Single], dtype: torch.dtype, device: torch.device) -> DecodeGroup:
    first, last, count = members[0].token, members[-1].token, len(members)
    if count == 1:
        context = members[0].context
        return DecodeGroup(slice(first, last + 1), 1, _pages(members[0].pages, device), context, None, (context,))
    contexts = tuple(m.context for m in members)
    longest, width = max(contexts), max(len(m.pages) for m in members)
    pages = [page for m in members for page in (*m.pages, *m.pages[:1] * (width - len(m.pages)))]
    tokens: Tensor | slice = slice(first, last + 1)
    if last - first != count - 1:  # prefill chunks lie between them
        tokens = torch.tensor([m.token for m in members], device=device)
    mask = _padding(contexts, dtype, device) if min(contexts) != longest else None
    return DecodeGroup(tokens, count, torch.tensor(pages, device=device), longest, mask, contexts)


def _padding(contexts: tuple[int, ...], dtype: torch.dtype, device: torch.device, window: int | None = None) -> Tensor:
    """[1, N, 1, longest] 0 where a sequence's newest token sees, -inf behind its context (and before its window)."""
    seen, ends = torch.arange(max(contexts)), torch.tensor(contexts).unsqueeze(1)
    hidden = seen >= ends
    if window is not None:
        hidden |= seen < ends - window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)[None, :, None].to(device)
