from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.dead_ring import as_segment, is_dead, remains, settle
from traces.ring import START, Ring, pack_state
from traces.schema import BY_NUMBER
from traces.segment import build, describe, parse
from traces.walk import only, sound_prefix, word_offsets

MARK = 0xA5


def record(number: int, words: int, content: int) -> bytes:
    """A record made by hand: u32 words, u32 table, u64s, a mark in the last byte."""
    body = struct.pack("<II", words, number) + struct.pack("<Q", content) * (words - 2)
    return body + bytes(7) + bytes([MARK])


def contents(records: bytes) -> list[int]:
    """The u64 after the header of every record, in order."""
    starts = sorted(at for number, found in word_offsets(records).items() if number for at in found)
    return [struct.unpack_from("<Q", records, at * 8 + 8)[0] for at in starts]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.tuples(st.just("write"), st.integers(3, 600)), st.just(("take", 0))), max_size=400))
def test_what_was_written_is_taken_once_and_in_order(actions: list[tuple[str, int]]) -> None:
    ring = Ring(None, 1 << 16)
    written, taken, lost = [], [], 0
    for index, (action, words) in enumerate([*actions, ("take", 0)]):
        if action == "write":
            if ring.write(record(3, words, index)):
                written.append(index)
            else:
                lost += 1
        else:
            records, end = ring.take()
            taken += contents(records)
            ring.release(end, 0)
            assert ring.used == 0
    assert taken == written


def test_a_full_ring_refuses_detail_first_and_counts_nothing_twice() -> None:
    ring = Ring(None, 1 << 16)
    while ring.room(800, True) >= 0:
        pass
    assert ring.used == pytest.approx(0.75 * (1 << 16), abs=800)
    while ring.room(800, False) >= 0:
        pass
    assert ring.used == pytest.approx(1 << 16, abs=900)
    assert not ring.write(record(3, 100, 1))


def test_a_record_larger_than_a_quarter_of_the_ring_is_refused() -> None:
    ring = Ring(None, 1 << 16)
    assert not ring.write(record(3, 2049, 1))
    assert ring.write(record(3, 2048, 1))


CHILD = """
import sys, time
from pathlib import Path
from traces.records import record_writer
from traces.ring import Ring
from traces.schema import BY_NUMBER, TOKEN
from traces.segment import describe
folder = Path(sys.argv[1]); folder.mkdir(parents=True)
ring = Ring(folder / "00ab.ring", 1 << 16, describe(BY_NUMBER.values()))
write = record_writer(ring, TOKEN)
for index in range(1000):
    write(index, "a" * 32, index, 7, 0)
    if index % 100 == 99 and index < 900:
        records, end = ring.take()
        ring.announce(index // 100, end)
        ring.release(end, index // 100 + 1)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The ring of a process that wrote tokens 0..999, let go of the first 900 as segments 0..8, and was killed with -9."""
    folder = tmp_path / "spool" / "rank0"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline().strip() == "ready"
    assert not is_dead(folder / "00ab.ring")
    child.send_signal(signal.SIGKILL)
    child.wait()
    return folder / "00ab.ring"


def never(key: tuple[str, str, int]) -> bool:
    return False


def ring_segment(path: Path, stored: Callable[[tuple[str, str, int]], bool]) -> bytes | None:
    """The segment that a dead ring would become; None when it holds nothing."""
    left = remains(path, stored)
    return as_segment(path, left) if left and left.records else None


def spooled_whole(folder: Path, boot: str, seq: int) -> Path:
    """A whole segment file, as if the dead process had written it."""
    path = folder / boot / f"{seq:08d}.segment"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(build("rank0", boot, seq, 1, describe([]), b""))
    return path


def test_a_killed_process_leaves_what_it_had_not_let_go_of(killed: Path) -> None:
    assert is_dead(killed)
    left = ring_segment(killed, never)
    assert left is not None
    (segment,) = parse(left)
    assert segment.key == ("rank0", "00ab", 9)
    assert contents(bytes(segment.records)) == list(range(900, 1000))


def test_bytes_after_the_last_whole_record_are_left_out(killed: Path) -> None:
    content = bytearray(killed.read_bytes())
    whole = ring_segment(killed, never)
    assert whole is not None
    last = bytes(next(parse(whole)).records)[-80:]
    at = content.rindex(last) + 79
    content[at] = 0  # the mark of the last record: as if the process had died while writing it
    killed.write_bytes(content)
    left = ring_segment(killed, never)
    assert left is not None
    assert contents(bytes(next(parse(left)).records)) == list(range(900, 999))


def test_records_already_in_a_segment_are_not_taken_again(tmp_path: Path) -> None:
    """Killed after the segment was spooled and before the ring let go of it."""
    folder = tmp_path / "spool" / "rank0"
    folder.mkdir(parents=True)
    ring = Ring(folder / "00cd.ring", 1 << 16, describe(BY_NUMBER.values()))
    for index in range(5):
        ring.write(record(3, 4, index))
    _, end = ring.take()
    ring.announce(0, end)
    ring.write(record(3, 4, 5))
    ring.close()
    unspooled = ring_segment(folder / "00cd.ring", never)
    assert unspooled is not None and contents(bytes(next(parse(unspooled)).records)) == [0, 1, 2, 3, 4, 5]
    path = spooled_whole(folder, "00cd", 0)
    spooled = ring_segment(folder / "00cd.ring", never)
    assert spooled is not None
    (segment,) = parse(spooled)
    assert (segment.header.seq, contents(bytes(segment.records))) == (1, [5])
    path.write_bytes(path.read_bytes()[:-3])  # torn: it died while writing it
    torn = ring_segment(folder / "00cd.ring", never)
    assert torn is not None and contents(bytes(next(parse(torn)).records)) == [0, 1, 2, 3, 4, 5]
    acknowledged = ring_segment(folder / "00cd.ring", lambda key: key == ("rank0", "00cd", 0))
    assert acknowledged is not None and next(parse(acknowledged)).header.seq == 1


def test_a_state_torn_by_the_death_of_its_writer_falls_back_to_the_one_before(tmp_path: Path) -> None:
    """Killed while noting that segment 0 has been let go of: the note before still says where its records end."""
    folder = tmp_path / "spool" / "rank0"
    folder.mkdir(parents=True)
    path = folder / "00cd.ring"
    ring = Ring(path, 1 << 16, describe(BY_NUMBER.values()))
    ring.write(record(3, 4, 1))
    _, end = ring.take()
    ring.announce(0, end)
    spooled_whole(folder, "00cd", 0)
    ring.write(record(3, 4, 2))
    ring.close()
    content = bytearray(path.read_bytes())
    generations = {at: struct.unpack_from("<Q", content, at)[0] for at in (64, 128)}
    older = min(generations, key=lambda at: generations[at])
    struct.pack_into("<QQ", content, older, max(generations.values()) + 1, 12345)  # half of the next note, over the older slot
    path.write_bytes(content)
    left = ring_segment(path, never)
    assert left is not None
    assert contents(bytes(next(parse(left)).records)) == [2]


def test_a_dead_ring_becomes_a_segment_once_however_often_it_is_interrupted(killed: Path) -> None:
    left = remains(killed, never)
    assert left is not None
    ring = killed.read_bytes()
    target = settle(killed, left)
    assert target is not None and target.name == "00000009.segment" and not killed.exists()
    assert contents(bytes(next(parse(target.read_bytes())).records)) == list(range(900, 1000))
    # Interrupted before the ring was deleted: it has noted that its records are segment 9.
    killed.write_bytes(ring)
    at, note = pack_state(left.generation + 1, left.state)
    noted = bytearray(ring)
    noted[at : at + len(note)] = note
    killed.write_bytes(noted)
    again = remains(killed, never)
    assert again is not None and again.records == b"" and settle(killed, again) is None and not killed.exists()
    # Interrupted before the segment was written.
    target.unlink()
    killed.write_bytes(noted)
    once_more = remains(killed, never)
    assert once_more is not None and settle(killed, once_more) == target
    assert contents(bytes(next(parse(target.read_bytes())).records)) == list(range(900, 1000))


def test_a_file_that_is_no_ring_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "rank0" / "00ef.ring"
    path.parent.mkdir()
    for content in (b"", b"WBRING1\0", os.urandom(START + 100), bytes(START + (1 << 16))):
        path.write_bytes(content)
        assert ring_segment(path, never) is None


def test_a_disabled_ring_takes_nothing_more() -> None:
    ring = Ring(None, 1 << 16)
    assert ring.write(record(3, 4, 1))
    ring.disable()
    assert not ring.write(record(3, 4, 2))
    assert contents(ring.take()[0]) == [1]


def test_a_ring_that_finds_no_room_on_disk_fails_at_once_and_leaves_no_file(tmp_path: Path, small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(1 << 20)
    with pytest.raises(OSError, match="No space"):
        Ring(disk / "a.ring", 4 << 20)
    assert list(disk.iterdir()) == []


def test_many_threads_lose_nothing() -> None:
    ring = Ring(None, 32 << 20)

    def fill(thread: int) -> None:
        for index in range(5000):
            ring.write(record(3, 3 + index % 5, thread * 10_000 + index))

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = contents(ring.take()[0])
    assert len(found) == 40_000
    for number in range(8):
        assert [value % 10_000 for value in found if value // 10_000 == number] == list(range(5000))


def test_walks() -> None:
    records = record(3, 4, 1) + record(5, 6, 2) + record(3, 3, 3)
    assert word_offsets(records) == {3: [0, 10], 5: [4]}
    assert only(records, {3}) == (record(3, 4, 1) + record(3, 3, 3), {5: 1})
    assert sound_prefix(records + bytes(64)) == len(records)
    assert sound_prefix(records[:-8] + bytes(8)) == len(records) - 24
    assert sound_prefix(b"") == 0
