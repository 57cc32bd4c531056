"""Particles over HTTP: the same text as through the other doors, told as far as all of them agree."""

import pytest
from serve_helpers import close, events, printed, serving

from pmlm.lm import LM, load, packaged_model_folder

ASKED = {"template": "Tom [MASK:5] cat. [MASK:4] Jerry [MASK:6].", "seed": 2, "particles": 6}


@pytest.fixture(scope="module")
def stories() -> LM:
    return load(packaged_model_folder())


def test_every_door_writes_the_same(stories: LM, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(packaged_model_folder())
    own = printed(capsys, "generate", ASKED["template"], "--seed", "2", "--particles", "6", "--json", "-m", folder)
    assert own["approximate"] == ["particles 6"]
    with serving({"stories": stories}) as served:
        assert close(served.post("/v1/generate", **ASKED).json(), own)
        told = list(events(served, **ASKED))
        steps = [data for name, data in told if name == "step"]
        assert [step["step"] for step in steps] == list(range(1, 16))
        assert [own["tokens"][step["position"]] for step in steps] == [step["token"] for step in steps]
        assert close(told[-1][1], own)
        refused = served.post("/v1/generate", **{**ASKED, "order": "random"})
        assert refused.status_code == 422
        assert "left to right" in refused.json()["error"]
        assert served.settled()
