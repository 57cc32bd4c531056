"""The house rules that a machine can see: import layers, where printing lives, what an import costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pmlm

SOURCE = Path(pmlm.__file__).parent
LAYERS = [
    {"errors", "config", "runtime", "rank_process", "detokenize", "keeping"},
    {"tokenizer", "words", "batch", "model", "masking", "orders", "visibility"},
    {"objectives", "likelihood", "generation", "corpus"},
    {"evaluation", "results", "writer", "options", "refining", "lm"},
    {"interop"},
    {"training", "hf"},
    {"nlu"},
    {"serve", "bench"},
    {"compare"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    if part in ("__init__", "__main__"):
        return
    for name in imports(path):
        if name.startswith("pmlm."):
            other = name.split(".")[1]
            assert other == part or LEVEL[other] <= LEVEL[part], f"{part} imports {other}"
            if part == "model":
                assert other in ("errors", "config", "runtime", "model"), f"model/ must not know {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_printing_lives_in_the_command_line_alone(path: Path) -> None:
    if part_of(path) in ("cli", "__main__"):
        return
    calls = [
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert "print" not in calls
    assert "typer" not in imports(path)


@pytest.mark.parametrize("path", [p for p in FILES if p.read_text().strip()], ids=lambda p: str(p.relative_to(SOURCE)))
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("module", ["pmlm", "pmlm.cli"])
def test_importing_imports_neither_torch_nor_a_server(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'fastapi', 'uvicorn'}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_public_api_is_what_it_says() -> None:
    assert pmlm.__all__ == ["LM", "Filled", "Finetuned", "LanguageModel", "ModelConfig", "PmlmError", "Ranked", "Refined", "Score",
                            "Step", "Stream", "Streamer", "Tokenizer", "__version__", "acrostic", "load", "load_finetuned",
                            "load_tokenizer", "train_tokenizer"]  # fmt: skip
    for name in pmlm.__all__:
        assert getattr(pmlm, name) is not None
    with pytest.raises(AttributeError):
        _ = pmlm.nothing
