"""When an epoch begins."""

import pytest

import holdfast as hf


def test_every_has_an_interval_and_no_end():
    trigger = hf.every("1.5 s")
    assert (trigger.interval_us, trigger.is_bounded, str(trigger)) == (1_500_000, False, 'every("1500 ms")')


def test_available_now_has_an_end():
    assert hf.available_now().is_bounded
    assert str(hf.available_now()) == "available_now()"


def test_an_interval_without_a_unit_is_refused():
    with pytest.raises(hf.InvalidPipeline, match="interval='100'"):
        hf.every("100")
