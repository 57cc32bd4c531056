"""Particles over HTTP: the same text as through the other doors, told as far as all of them agree."""

from functools import partial
from typing import Unpack

import pytest
from serve_helpers import close, events, printed, serving

from pmlm.lm import LM, load, packaged_model_folder
from pmlm.options import FillOptions
from pmlm.serve.metrics import Metrics
from pmlm.serve.worker import Task, Worker

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
        unmade = served.post("/v1/generate/stream", **{**ASKED, "top_k": 3})
        assert (unmade.status_code, "leave it out" in unmade.json()["error"]) == (422, True)
        assert served.settled()


def test_nobody_overtakes_a_crowd_that_waits_for_its_places(stories: LM) -> None:
    worker = Worker(4, Metrics())

    def come(**options: Unpack[FillOptions]) -> Task:
        jobs = partial(stories.writer.jobs, ["A [MASK:4]"], [1], stories.settings(options))
        task = Task(put=lambda _report: None, model=stories.model, prepare=jobs, num_texts=1)
        worker._begin(task)
        worker._prepare()
        worker._admit()
        return task

    def leave(task: Task) -> None:
        while task.lines:
            worker._turn()
        worker._admit()

    first, crowd, later, other = come(speculative=2), come(particles=4), come(speculative=2), come()
    assert [bool(task.lines) for task in (first, crowd, later, other)] == [True, False, False, True]
    leave(first)
    assert [bool(task.lines) for task in (crowd, later)] == [True, False]
    leave(crowd)
    assert later.lines
