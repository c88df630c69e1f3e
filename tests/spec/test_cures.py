"""What an error advises exists, and leads out (design/0032)."""

import pytest

from tests.spec.cures.named import faults_of
from tests.spec.cures.sites import sites


@pytest.mark.parametrize(
    ("module", "texts"),
    [
        (module, [text for site in sites() if site.module == module for text in site.texts])
        for module in dict.fromkeys(site.module for site in sites())
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_advice_names_only_what_exists(module, texts):
    assert [(text, fault) for text in texts for fault in faults_of(module, text)] == []
