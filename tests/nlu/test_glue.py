"""GLUE's files: quirks on files written here, what is missing said, nothing of dev in train; the real ones' sizes."""

import lzma
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pmlm.errors import ConfigError, DataError
from pmlm.nlu.glue import Example, fingerprint, load_glue, parse_tsv
from pmlm.nlu.glue_study import without_held
from pmlm.nlu.hub import load_hub_glue
from pmlm.nlu.tasks import SUBMISSION_NAMES, TASKS, GlueTask, find_tasks


def task(name: str) -> GlueTask:
    return find_tasks([name])[0]


def write(folder: Path, name: str, text: str, *, packed: bool = False) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if packed:
        path.with_name(path.name + ".xz").write_bytes(lzma.compress(text.encode()))
    else:
        path.write_bytes(text.encode())


def test_tasks_are_found_in_any_spelling_and_unknown_ones_named() -> None:
    assert [t.name for t in find_tasks(["sst2", "STS-B", "SST-2"])] == ["SST-2", "STS-B"]
    assert len(find_tasks(["all"])) == 9
    with pytest.raises(ConfigError, match="no GLUE task 'SNLI'"):
        find_tasks(["CoLA", "SNLI"])


def test_the_table_fits_together() -> None:
    for row in TASKS:
        assert set(row.sizes) == {"train", *(f"{n} dev" for n in row.dev), *(f"{n} test" for n in row.test)}
        assert not row.says or len(row.says) == len(row.labels)
        assert not row.headless or {*row.texts, row.label} <= set(row.headless)
        assert not row.hub_texts or len(row.hub_texts) == len(row.texts)
    assert set(SUBMISSION_NAMES) == {"CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX"}  # fmt: skip


def test_quotes_are_text_and_only_a_line_feed_ends_a_line() -> None:
    text = 'sentence\tlabel\n" an open quote \t1\na line separator\u2028 and \x85 inside\t0\nlast, without an end\t1'
    split = parse_tsv(text, task("SST-2"), labelled=True, where="x")
    assert [e.texts[0] for e in split.examples] == [
        '" an open quote', "a line separator\u2028 and \x85 inside", "last, without an end"]  # fmt: skip
    assert [e.label for e in split.examples] == [1, 0, 1]


def test_cola_has_no_header_where_it_is_labelled_and_one_where_it_is_not() -> None:
    labelled = parse_tsv("gj04\t1\t\tIt is.\ngj04\t0\t*\tIt are.\n", task("CoLA"), labelled=True, where="x")
    assert [(e.texts, e.label) for e in labelled.examples] == [(("It is.",), 1), (("It are.",), 0)]
    test = parse_tsv("index\tsentence\n7\tIt is.\n", task("CoLA"), labelled=False, where="x")
    assert test.examples == [Example("7", ("It is.",))]


def test_mrpcs_byte_order_mark_and_rebuilt_file(tmp_path: Path) -> None:
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    write(tmp_path, "MRPC/train.tsv", head + "1\t1\t2\told a\told b\r\n")
    write(tmp_path, "MRPC/train_rebuilt_3668.tsv", head + '1\t1\t2\t" a\tb\r\n0\t3\t4\tc\td\r\n', packed=True)
    write(tmp_path, "MRPC/dev.tsv", head + "0\t5\t6\te\tf\r\n")
    data = load_glue(task("MRPC"), tmp_path)
    assert data.train is not None
    assert [(e.texts, e.label) for e in data.train.examples] == [(('" a', "b"), 1), (("c", "d"), 0)]
    assert data.can_train


def test_mnlis_columns_are_found_by_name_and_undecided_rows_left_out(tmp_path: Path) -> None:
    head = "index\tpromptID\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
    rows = "0\t1\t( a )\ta\tb\tneutral\tcontradiction\n1\t1\tx\tc\td\tneutral\t-\n"
    for name in ("train", "dev_matched", "dev_mismatched"):
        write(tmp_path, f"MNLI/{name}.tsv", head + rows.replace("\ta\t", f"\t{name}\t"))
    write(tmp_path, "diagnostic/diagnostic.tsv", "index\tsentence1\tsentence2\n0\tp\tq\n")
    data = load_glue(task("MNLI"), tmp_path)
    assert set(data.dev) == {"MNLI-m", "MNLI-mm"}
    assert set(data.test) == {"AX"}
    assert data.dev["MNLI-mm"].examples == [Example("0", ("dev_mismatched", "b"), 2)]
    assert data.dev["MNLI-m"].broken == 1
    said = " ".join(data.notes)
    assert "MNLI-m test is missing (MNLI/test_matched.tsv)" in said
    assert "MNLI-mm test is missing" in said
    assert "AX test has 1 examples, not the 1,104 published" in said


def test_rows_that_lost_a_column_are_counted_where_labelled_and_refused_where_predicted() -> None:
    text = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta\tb\t1\n4\t5\t6\tc\t0\n"
    split = parse_tsv(text, task("QQP"), labelled=True, where="x")
    assert (len(split.examples), split.broken) == (1, 1)
    headless = parse_tsv("4\t5\t6\tc 0\n1\t2\t3\ta\tb\t1\n", task("QQP"), labelled=True, where="x")
    assert (headless.examples, headless.broken) == ([Example("1", ("a", "b"), 1)], 1)
    with pytest.raises(DataError, match="line 3: 2 columns, not 3"):
        parse_tsv("id\tquestion1\tquestion2\n0\ta\tb\n1\tc\n", task("QQP"), labelled=False, where="x")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("SST-2", "sentence\tlabel\na\t2\n", "line 2: label is '2'; SST-2 has 0, 1"),
        ("RTE", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n", "entailment, not_entailment"),
        ("STS-B", "sentence1\tsentence2\tscore\na\tb\t5.1\n", "a number from 0 to 5"),
        ("STS-B", "sentence1\tsentence2\tscore\na\tb\tnan\n", "a number from 0 to 5"),
        ("SST-2", "text\tlabel\na\t1\n", "no column 'sentence'"),
        ("SST-2", "sentence\tlabel\n", "no examples"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(name: str, text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        parse_tsv(text, task(name), labelled=True, where="x.tsv")


def test_a_training_example_that_dev_or_test_holds_is_left_out_and_counted(tmp_path: Path) -> None:
    head = "sentence\tlabel\n"
    write(tmp_path, "SST-2/train.tsv", head + "a  Film\t1\nb\t0\nc\t0\n")
    write(tmp_path, "SST-2/dev.tsv", head + "A film \t1\n")
    write(tmp_path, "SST-2/test.tsv", "index\tsentence\n0\tc\n")
    data = load_glue(task("SST-2"), tmp_path)
    assert data.train is not None
    assert [e.texts for e in data.train.examples] == [("b",)]
    assert any("2 training examples are in dev or test" in note for note in data.notes)


def test_tasks_that_share_their_data_do_not_train_on_each_others_dev(tmp_path: Path) -> None:
    head = "index\tsentence1\tsentence2\tlabel\n"
    write(tmp_path, "RTE/train.tsv", head + "0\ta\tb\tentailment\n1\tc\td\tentailment\n")
    write(tmp_path, "RTE/dev.tsv", head + "0\te\tf\tentailment\n")
    write(tmp_path, "WNLI/train.tsv", head + "0\te\tf\t1\n1\tg\th\t1\n")
    write(tmp_path, "WNLI/dev.tsv", head + "0\tA\tb\t1\n")
    clean = without_held([load_glue(task(name), tmp_path) for name in ("RTE", "WNLI")])
    kept = [[e.texts for e in d.train.examples] for d in clean if d.train is not None]
    assert kept == [[("c", "d")], [("g", "h")]]
    assert all("dev or test of these tasks" in " ".join(d.notes) for d in clean)


def test_a_pair_that_another_task_writes_otherwise_is_the_same_pair(tmp_path: Path) -> None:
    head = "index\tsentence1\tsentence2\tlabel\n"
    write(
        tmp_path,
        "RTE/train.tsv",
        head + "0\tIt doesn 't end , he said\tSo `` be\u00b4\u00b4 it\tentailment\n1\tc\td\tentailment\n",
    )
    write(tmp_path, "RTE/dev.tsv", head + "0\te\tf\tentailment\n")
    write(tmp_path, "WNLI/train.tsv", head + "0\t!\t?\t1\n")
    write(tmp_path, "WNLI/dev.tsv", head + '0\tso "be" it\tIt doesn\'t end, he said.\t1\n1\t?\t.\t1\n')
    clean = without_held([load_glue(task(name), tmp_path) for name in ("RTE", "WNLI")])
    kept = [[e.texts for e in d.train.examples] for d in clean if d.train is not None]
    assert kept == [[("c", "d")], [("!", "?")]]


def test_of_the_real_files_no_task_is_trained_on_anothers_dev_or_test(shared_data: Path) -> None:
    """STS-B took pairs from MRPC, hundreds of which are in the other's training file."""

    def words(texts: tuple[str, ...]) -> frozenset[str]:
        return frozenset(re.sub("[^a-z0-9]", "", text.lower()) for text in texts)

    before = [load_glue(task(name), shared_data / "glue") for name in ("MRPC", "STS-B", "RTE")]
    held = {words(e.texts) for d in before for s in (*d.dev.values(), *d.test.values()) for e in s.examples}
    trained = [[words(e.texts) for e in d.train.examples] for d in without_held(before) if d.train is not None]
    assert not held & {key for keys in trained for key in keys}
    assert len(trained[0]) > 3300  # of 3,668: no more is left out than there must be
    assert len(trained[1]) > 5000


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.text(min_size=1), min_size=2, max_size=2))
def test_fingerprints_tell_pairs_apart_but_not_case_and_spacing(texts: list[str]) -> None:
    a, b = texts
    assert fingerprint(Example("0", (a, b))) == fingerprint(Example("1", (f" {a.casefold()}  ", b)))
    assert fingerprint(Example("0", ("x", "y"))) != fingerprint(Example("0", ("xy",)))


def test_a_missing_folder_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data folder"):
        load_glue(task("CoLA"), tmp_path / "none")
    data = load_glue(task("MNLI"), tmp_path)
    assert not data.can_train
    assert len(data.notes) == 1 + 2 + 3


def test_the_hub_is_an_option_and_its_absence_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="not installed"):
        load_hub_glue(task("CoLA"))

    def load_dataset(_name: str, part: str) -> dict[str, list[dict[str, Any]]]:
        if part == "rte":
            raise ConnectionError("no route")
        row = {"premise": "a", "hypothesis": "b", "label": 2, "idx": 5}
        names = ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched", "test")
        return {name: [{**row, "premise": name}] for name in names}

    fake = types.ModuleType("datasets")
    fake.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    data = load_hub_glue(task("MNLI"))
    assert data.train is not None
    assert data.train.examples == [Example("5", ("train", "b"), 2)]
    assert data.dev["MNLI-mm"].examples[0].texts[0] == "validation_mismatched"
    assert set(data.test) == {"MNLI-m", "MNLI-mm", "AX"}
    with pytest.raises(DataError, match="no route"):
        load_hub_glue(task("RTE"))
    fake.load_dataset = lambda *_names: (_ for _ in ()).throw(TimeoutError())  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="glue/rte: TimeoutError"):
        load_hub_glue(task("RTE"))


COMPLETE = ["CoLA", "SST-2", "MRPC", "STS-B", "RTE", "WNLI"]


@pytest.mark.parametrize("name", COMPLETE)
def test_the_real_files_have_the_published_sizes_and_no_dev_example_is_trained_on(name: str, shared_data: Path) -> None:
    row = task(name)
    data = load_glue(row, shared_data / "glue")
    assert data.train is not None
    assert not any("published" in note or "missing" in note or "broken" in note for note in data.notes), data.notes
    held = {fingerprint(e) for split in (*data.dev.values(), *data.test.values()) for e in split.examples}
    assert not held & {fingerprint(e) for e in data.train.examples}
    assert len(data.train.examples) > 0.9 * row.sizes["train"]


def test_of_the_real_files_what_is_missing_is_said(shared_data: Path) -> None:
    for name in ("MNLI", "QNLI", "QQP"):
        data = load_glue(task(name), shared_data / "glue")
        assert not data.can_train
        assert f"{name}: train is missing ({name}/train.tsv)" in data.notes
