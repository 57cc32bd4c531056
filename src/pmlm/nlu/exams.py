"""How a fine-tuned model is measured on dev: an exam per task, the figures of its parts, and one score to choose by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pmlm.model import HeadSpec, TaskModel
from pmlm.nlu.framing import PairRow, fingerprint
from pmlm.nlu.metrics import constant_figures, constant_score, mean, task_scores
from pmlm.nlu.predict import decide, predict
from pmlm.nlu.squad_metric import answer_scores, best_threshold, squad_scores
from pmlm.nlu.tasks import GlueTask
from pmlm.nlu.windows import Asked, Found, WindowSettings, find_answers


@dataclass(frozen=True)
class Mark:
    """What an exam found."""

    figures: dict[str, dict[str, float]]
    """Metrics by part, such as MNLI-m."""
    score: float
    """The mean over parts of the mean over the part's metrics; of SQuAD, F1 at the best threshold."""
    spec: HeadSpec
    """The head with what was found out about its use."""


class Exam(Protocol):
    @property
    def constant_score(self) -> float:
        """What the best answer that ignores its input scores."""
        ...

    @property
    def constants(self) -> dict[str, dict[str, float]]:
        """The same by part and metric, each metric with its own best answer."""
        ...

    def fingerprint(self) -> str:
        """Of what is asked and of the right answers."""
        ...

    def take(self, model: TaskModel, pad_id: int) -> Mark: ...


@dataclass(frozen=True)
class GlueExam:
    task: GlueTask
    spec: HeadSpec
    parts: Mapping[str, tuple[list[PairRow], list[float]]]
    """Rows and labels by part."""

    @property
    def constant_score(self) -> float:
        return mean(constant_score(self.task, gold) for _, gold in self.parts.values())

    @property
    def constants(self) -> dict[str, dict[str, float]]:
        return {part: constant_figures(self.task, gold) for part, (_, gold) in self.parts.items()}

    def fingerprint(self) -> str:
        return fingerprint([(part, [row.ids for row in rows], gold) for part, (rows, gold) in self.parts.items()])

    def take(self, model: TaskModel, pad_id: int) -> Mark:
        figures = {
            part: task_scores(self.task, decide(self.spec, predict(model, self.spec.name, rows, pad_id)), gold)
            for part, (rows, gold) in self.parts.items()
        }
        return Mark(figures, mean(mean(scores.values()) for scores in figures.values()), self.spec)


@dataclass(frozen=True)
class SquadExam:
    """`HasAns_f1_always`: of questions that have an answer, how good the best span is, whatever the threshold."""

    spec: HeadSpec
    asked: Sequence[Asked]
    windows: WindowSettings

    @property
    def constant_score(self) -> float:
        """Of never answering."""
        return mean(float(not asked.question.answers) for asked in self.asked)

    @property
    def constants(self) -> dict[str, dict[str, float]]:
        return {self.spec.name: dict.fromkeys(("exact", "f1"), self.constant_score)}

    def fingerprint(self) -> str:
        asked = [(a.question.id, a.question.golds, [window.row.ids for window in a.windows]) for a in self.asked]
        return fingerprint(asked)

    def take(self, model: TaskModel, pad_id: int) -> Mark:
        found = find_all(model, self.spec.name, self.asked, pad_id, self.windows)
        return self.mark(found)

    def mark(self, found: Mapping[str, Found]) -> Mark:
        golds = {asked.question.id: asked.question.golds for asked in self.asked}
        says = {key: f.best[0].text if f.best else "" for key, f in found.items()}
        odds = {key: f.no_answer for key, f in found.items()}
        scores = {key: answer_scores(says[key], gold) for key, gold in golds.items()}
        has = {key: bool(gold) for key, gold in golds.items()}
        best_exact, exact_at = best_threshold({k: s[0] for k, s in scores.items()}, odds, has, says)
        best_f1, f1_at = best_threshold({k: s[1] for k, s in scores.items()}, odds, has, says)
        at_best = squad_scores(answered(found, f1_at), golds)
        always = [scores[key] for key in golds if has[key]]
        figures = {
            **at_best,
            **(
                {"HasAns_exact_always": mean(s[0] for s in always), "HasAns_f1_always": mean(s[1] for s in always)}
                if always
                else {}
            ),
            "best_exact": best_exact,
            "best_exact_threshold": exact_at,
            "best_f1": best_f1,
            "best_f1_threshold": f1_at,
            **{
                f"{name}_at_0": value
                for name, value in squad_scores(answered(found, 0.0), golds).items()
                if "_" not in name
            },
            "never_answering": self.constant_score,
        }
        return Mark({self.spec.name: figures}, best_f1, replace(self.spec, threshold=f1_at))


def answered(found: Mapping[str, Found], threshold: float) -> dict[str, str]:
    """The best span, or nothing where "no answer" exceeds the threshold: what the official script reads."""
    return {key: f.best[0].text if f.best and f.no_answer <= threshold else "" for key, f in found.items()}


def find_all(
    model: TaskModel, name: str, asked: Sequence[Asked], pad_id: int, settings: WindowSettings
) -> dict[str, Found]:
    """What each question's windows say, by the question's id."""
    said = iter(predict(model, name, [window.row for a in asked for window in a.windows], pad_id))
    return {a.question.id: find_answers(a, [next(said) for _ in a.windows], settings) for a in asked}


@dataclass(frozen=True)
class Scores:
    """An evaluation on dev after a step."""

    step: int
    marks: dict[str, Mark] = field(default_factory=dict)

    @property
    def headline(self) -> float:
        return mean(mark.score for mark in self.marks.values())

    def record(self) -> dict[str, Any]:
        figures = {part: scores for mark in self.marks.values() for part, scores in mark.figures.items()}
        return {"dev": figures, "scores": {name: mark.score for name, mark in self.marks.items()}}

    def line(self) -> str:
        parts = [
            f"{part} " + " ".join(f"{name} {value:.4f}" for name, value in scores.items() if "_" not in name)
            for part, scores in self.record()["dev"].items()
        ]
        return f"step {self.step}  dev: " + "; ".join(parts)
