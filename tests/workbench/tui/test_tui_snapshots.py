"""Pictures of the screens, with clock, data and theme given."""

from __future__ import annotations

import pytest

SIZE = (100, 30)


@pytest.mark.parametrize("key", ["1", "2", "4", "5"])
def test_screens(app, snap_compare, key, settled):
    async def before(pilot):
        await settled(pilot)
        await pilot.press(key)
        await settled(pilot)

    assert snap_compare(app, terminal_size=SIZE, run_before=before)


def test_experts_without_colours(app_of, shown, snap_compare, settled, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    async def before(pilot):
        await settled(pilot)
        await pilot.press("2")
        await settled(pilot)

    assert snap_compare(app_of(shown, plain=None), terminal_size=(80, 24), run_before=before)
