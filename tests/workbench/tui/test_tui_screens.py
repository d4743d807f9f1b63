"""The screens as a person uses them: real run, real store, keys pressed, text read."""

from __future__ import annotations

import re

import pytest

from traces.errors import Unreachable
from traces.store import open_run
from workbench.tui.screens.experts import ExpertsScreen
from workbench.tui.screens.playbook import PlaybookScreen
from workbench.tui.widgets.heatmap import Heatmap


def test_overview_shows_the_run_its_ranks_and_latencies(app, drive, reading):
    async def scenario(pilot):
        text = reading(pilot)
        assert "■ recorded 2025-11-24 16:00" in text
        assert "shapes-moe dp4 ep4" in text
        assert "▲ 12 rows dropped" in text
        assert re.search(r"TTFT +100 ms +100 ms +100 ms +24", text)  # prefill 75 ms after 25 ms of queue and tokenizer
        assert re.search(r"end to end +585 ms +660 ms +660 ms +24", text)  # 510, 560, 610, 660 ms, six of each
        assert re.search(r" 2 +80\.0 +80\.0 +0\.00 +0 % +180 +8 +2 ", text)  # 8 decodes a step of 100 ms, 100 prompt tokens a second
        assert "running 32   waiting 2" in text
        assert re.search(r"gc +rank 1 +45\.0 ms +generation 2", text)

    drive(app, scenario)


def test_every_digit_is_a_screen_and_escape_leaves_the_help(app, drive, keys):
    async def scenario(pilot):
        for digit, mode in zip("234561", ("experts", "playbook", "ranks", "requests", "log", "overview"), strict=True):
            await keys(pilot, digit)
            assert pilot.app.current_mode == mode
        assert "run the playbook of the chosen symptom" in await keys(pilot, "question_mark")
        assert "throughput" in await keys(pilot, "escape")

    drive(app, scenario)


def test_experts_finds_the_hot_cell_and_follows_it_to_its_slot(app, drive, keys):
    async def scenario(pilot):
        text = await keys(pilot, "2")
        # layer 1: expert 9 has 10 + 9 + 100 of 16 x 10 + 120 + 100 = 380 tokens, 31.3 %; placement is contiguous: rank 2, slot 1
        assert "layer 1 · expert 9" in text
        assert re.search(r"share +31 %, even is 6\.2 %", text)
        assert "rank 2 slot 1" in text
        assert "uneven in 90 % of steps" in text
        text = await keys(pilot, "m")
        assert "layer 1 · rank 2 slot 1" in text and "expert 9" in text
        assert "layer 2 · rank 2 slot 1" in await keys(pilot, "right_square_bracket")
        assert re.search(r"layer 2 · rank 3 slot 3", await keys(pilot, "greater_than_sign"))  # the busiest of rank 3 is expert 15

    drive(app, scenario)


def test_experts_cursor_moves_by_arrow_and_by_mouse(app, drive, keys):
    async def scenario(pilot):
        await keys(pilot, "2", "up", "left")
        heatmap = pilot.app.screen.query_one(Heatmap)
        assert (heatmap.row, heatmap.column) == (0, 8)
        await pilot.click(Heatmap, offset=(4, 1))
        assert (heatmap.row, heatmap.column) == (0, 0)
        assert isinstance(pilot.app.screen, ExpertsScreen)

    drive(app, scenario)


def test_ranks_names_the_one_that_is_waited_for(app, drive, keys):
    async def scenario(pilot):
        text = await keys(pilot, "4")
        assert "time in a layer, all layers" in text
        assert "rank 2 enters last in 100 % of 120 collectives and waits least" in text
        assert re.search(r"rank  0 +· +0 +8\.00█ +0 +8\.00", text)  # experts 12 ms on rank 2, 4 ms elsewhere
        assert "time in a layer, layer 0" in await keys(pilot, "right_square_bracket")
        assert "time in a layer, layer 3" in await keys(pilot, "left_square_bracket", "left_square_bracket")

    drive(app, scenario)


def test_requests_filters_and_takes_the_chosen_one_apart(app, drive, keys):
    async def scenario(pilot):
        text = await keys(pilot, "5")
        assert "request 00000000…0018" in text  # the newest of 24
        assert re.search(r"decode .*550 ms", text)
        text = await keys(pilot, "down")
        assert "request 00000000…0017" in text and re.search(r"decode .*500 ms", text)
        text = await keys(pilot, "slash", *"rank=1")
        assert "6 of the last 24" in text
        text = await keys(pilot, "enter", "escape")
        assert "the last 24" in text and "of the last 24" not in text

    drive(app, scenario)


def test_log_shows_the_run_and_filters(app, drive, keys):
    async def scenario(pilot):
        assert "a log line of rank 1" in await keys(pilot, "6")
        assert "a log line of rank 1" not in await keys(pilot, "slash", *"nothing")

    drive(app, scenario)


def test_pause_and_theme(app, drive, keys):
    async def scenario(pilot):
        assert "‖ paused" in await keys(pilot, "space")
        assert "‖ paused" not in await keys(pilot, "space")
        await keys(pilot, "t")
        assert pilot.app.theme == "workbench-light"

    drive(app, scenario)


def test_playbook_runs_here_and_says_what_is_wrong(app_of, shown, drive, keys):
    async def scenario(pilot):
        text = await keys(pilot, "d")
        assert isinstance(pilot.app.screen, PlaybookScreen)
        assert "✖ problem" in text
        assert "✖ fail    Expert load uneven" in text
        assert "rank 2" in text and "experts 8 9 10 11" in text
        assert "observed" in text and "threshold 0.05 share of step time" in text

    drive(app_of(shown), scenario)


@pytest.mark.parametrize("mode", ["1", "2", "3", "4", "5", "6"])
def test_a_small_terminal_shows_every_screen_whole(app, drive, keys, mode):
    async def scenario(pilot):
        text = await keys(pilot, mode)
        footer = text.splitlines()[-1]
        assert "q Quit" in footer
        assert all(len(line) <= 80 for line in text.splitlines())

    drive(app, scenario, size=(80, 24))


def test_a_query_that_fails_is_a_banner_and_the_data_stay(app_of, shown, drive, keys, reading):
    broken = []

    def opener():
        if broken:
            raise Unreachable("the collector of this run does not answer", "open the run again")
        return open_run(shown)

    async def scenario(pilot):
        assert "TTFT" in reading(pilot)
        broken.append(True)
        text = await keys(pilot, "w")
        assert "the collector of this run does not answer" in text and "trying again" in text
        assert "◌ waiting" in text or "■ recorded" in text
        assert "running 32" in text
        broken.clear()
        assert "trying again" not in await keys(pilot, "w")

    app = app_of(shown)
    app.open_store = opener
    drive(app, scenario)


def test_a_bug_in_a_query_does_not_end_the_application(app_of, shown, drive, reading):
    def opener():
        raise KeyError("no such column")

    async def scenario(pilot):
        assert "KeyError" in reading(pilot)

    app = app_of(shown)
    app.open_store = opener
    drive(app, scenario)


def test_export_writes_the_report_into_the_run(app, shown, drive, keys):
    async def scenario(pilot):
        await keys(pilot, "e")
        pages = list((shown.path / "reports").glob("*.html"))
        assert len(pages) == 1 and pages[0].stat().st_size > 10_000

    drive(app, scenario)


def test_the_palette_goes_to_a_screen_by_name(app, drive, keys):
    async def scenario(pilot):
        await keys(pilot, "ctrl+p", *"requests")
        for _ in range(100):
            await pilot.pause(0.1)
            await pilot.press("enter")
            if pilot.app.current_mode == "requests":
                return
        pytest.fail("the palette did not go to the requests")

    drive(app, scenario)
