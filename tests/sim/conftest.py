"""Simulated lives fail thousands of times: what the coordinator says of it stays unsaid here."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _quiet():
    logger = logging.getLogger("holdfast.commit")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)
