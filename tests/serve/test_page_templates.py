"""The page's templates, without a browser: template.js is run by node."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pmlm import acrostic
from pmlm.serve.app import PAGE

NODE = shutil.which("node")
EDIT = """
import { blank, pieces, readOptions, replaced, writeOptions } from "./template.mjs";
const [source, change] = JSON.parse(process.argv[2]);
const piece = pieces(source).find((each) => each.kind === "blank");
const options = writeOptions({ ...readOptions(piece.options), ...change }, piece.options);
console.log(JSON.stringify(replaced(source, piece, blank({ ...piece, options }))));
"""
"""What the editor does with the first blank, as in app.js."""


def edited(folder: Path, source: str, change: dict[str, Any]) -> str:
    if NODE is None:
        pytest.skip("no node")
    (folder / "template.mjs").write_text((PAGE / "template.js").read_text())
    (folder / "edit.mjs").write_text(EDIT)
    command = [NODE, str(folder / "edit.mjs"), json.dumps([source, change])]
    return str(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


@pytest.mark.parametrize(
    ("source", "change", "becomes"),
    [
        ("[MASK:9|starts=T|line]", {"ends": "."}, "[MASK:9|line|starts=T|ends=.]"),
        ("[MASK:9|line]", {"digits": True}, "[MASK:9|line|digits]"),
        ("a[MASK:9|open|digits|line]", {"digits": False}, "a[MASK:9|open|line]"),
        ("[MASK:9|in=a\\|b|line]", {"in": ""}, "[MASK:9|line]"),
        ("[MASK:9|starts=T]", {"starts": "a|b"}, "[MASK:9|starts=a\\|b]"),
    ],
)
def test_editing_a_blank_keeps_what_the_editor_does_not_show(
    tmp_path: Path, source: str, change: dict[str, Any], becomes: str
) -> None:
    assert edited(tmp_path, source, change) == becomes


def test_lines_of_an_acrostic_stay_lines(tmp_path: Path) -> None:
    template = acrostic("Tom")
    first, *rest = edited(tmp_path, template, {"ends": "."}).split("\n")
    assert "|line" in template.split("\n")[0]
    assert "|line" in first
    assert rest == template.split("\n")[1:]
