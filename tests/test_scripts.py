"""Scripts that make figures: their arms are valid, and the log shows what their results say."""

import importlib.util
import re
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pmlm.runtime import generator

ROOT = Path(__file__).parent.parent


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


search = script("search_recipe")


@pytest.mark.parametrize("name", search.ARMS)
def test_every_arm_of_the_recipe_search_is_a_run_of_so_many_tokens(name: str) -> None:
    settings = search.settings_of(name, 2_000_000)
    tokens = settings.num_steps * settings.batch_rows * settings.rows.length
    assert 1.9e6 < tokens < 2.2e6
    assert settings.model.width == 256


def test_the_log_shows_the_table_that_the_results_give() -> None:
    log = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    lines = search.table(ROOT / "results" / "recipe").splitlines()
    assert len(lines) > 10
    missing = [line for line in lines if line not in log]
    assert not missing, missing


def test_the_page_of_the_ways_is_made_of_its_results() -> None:
    folder = ROOT / "results" / "ways"
    page = script("compare_ways").tables(folder)
    assert page == (folder / "figures.md").read_text(encoding="utf-8")
    assert page.count("## Before blind reader") == 2
    assert page.count("64 particles |") > 10


stories = script("draw_stories")
SPOKEN = ["on", "nc", "ce", "once", " once", "on a"]
PIECES = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(f"<0x{byte:02X}>".encode() for byte in range(256)), b" "]
PIECES += [bytes([byte]) for byte in b"abcdefghijklmnopqrstuvwxyz."] + [piece.encode() for piece in SPOKEN]


def model_file(kv_heads: int = 4, *, has_own_head: bool = False) -> tuple[bytes, dict[str, torch.Tensor]]:
    """A tiny model in llama2.c's format with its pieces, and its tensors by name."""
    width, hidden, layers, heads, context, count = 16, 12, 2, 4, 12, len(PIECES)
    kv = width // heads * kv_heads
    shapes = {
        "embedding": (count, width), "attention_norm": (layers, width), "q": (layers, width, width),
        "k": (layers, kv, width), "v": (layers, kv, width), "out": (layers, width, width), "feed_norm": (layers, width),
        "gate": (layers, hidden, width), "down": (layers, width, hidden), "up": (layers, hidden, width),
        "norm": (width,), "rotations": (context, width // heads), **({"head": (count, width)} if has_own_head else {}),
    }  # fmt: skip
    rng = generator("a tiny llama", kv_heads)
    tensors = {name: torch.randn(shape, generator=rng) / 2 for name, shape in shapes.items()}
    sizes = (width, hidden, layers, heads, kv_heads, -count if has_own_head else count, context)
    raw = struct.pack("<7i", *sizes) + b"".join(tensor.numpy().tobytes() for tensor in tensors.values())
    packed = b"".join(struct.pack("<fi", 0.0 if piece == b"nc" else len(piece), len(piece)) + piece for piece in PIECES)
    return raw + struct.pack("<i", 9) + packed, tensors


def read_whole(tensors: dict[str, torch.Tensor], ids: list[int], kv_heads: int) -> torch.Tensor:
    """Scores after each piece of a text that is read at once; places turn pairs of features as complex numbers."""

    def normed(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain

    def turned(x: torch.Tensor) -> torch.Tensor:  # (heads, places, 4)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        angles = torch.arange(len(ids))[:, None] * torch.tensor([1.0, 10000**-0.5])
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    x = tensors["embedding"][ids]
    for layer in range(2):
        y = normed(x, tensors["attention_norm"][layer])
        q, k, v = ((y @ tensors[name][layer].T).unflatten(-1, (-1, 4)).transpose(0, 1) for name in "qkv")
        k, v = (part.repeat_interleave(4 // kv_heads, 0) for part in (k, v))
        scores = turned(q) @ turned(k).mT / 2
        ahead = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
        read = scores.masked_fill(ahead, -torch.inf).softmax(-1) @ v
        x = x + read.transpose(0, 1).flatten(1) @ tensors["out"][layer].T
        y = normed(x, tensors["feed_norm"][layer])
        gate, up = y @ tensors["gate"][layer].T, y @ tensors["up"][layer].T
        x = x + (gate * gate.sigmoid() * up) @ tensors["down"][layer].T
    return normed(x, tensors["norm"]) @ tensors.get("head", tensors["embedding"]).T


@pytest.mark.parametrize(("kv_heads", "has_own_head"), [(4, False), (2, True)])
def test_a_drawn_text_is_read_piece_by_piece_as_it_would_be_at_once(kv_heads: int, has_own_head: bool) -> None:
    raw, tensors = model_file(kv_heads, has_own_head=has_own_head)
    network = stories.Network(raw, rows=3)
    texts = [[1, 265, 270, 280], [1, 290, 262, 266, 268, 271, 281], [1, 4, 275]]
    later = [0, 2, 3]  # rows do not begin together
    at_once = [read_whole(tensors, ids, kv_heads) for ids in texts]
    for step in range(7):
        places = [min(max(step - late, 0), len(ids) - 1) for ids, late in zip(texts, later, strict=True)]
        ids = torch.tensor([ids[place] for ids, place in zip(texts, places, strict=True)])
        scores = network.step(ids, torch.tensor(places))
        expected = torch.stack([rows[place] for rows, place in zip(at_once, places, strict=True)])
        torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    network.keep([270, 2, 265])
    torch.testing.assert_close(
        network.step(ids, torch.tensor(places)), expected[:, [2, 265, 270]], rtol=1e-4, atol=1e-5
    )


def test_words_are_made_of_the_best_pieces_and_read_back() -> None:
    raw, _ = model_file()
    pieces = stories.Pieces(raw[stories.Network(raw, 1).num_bytes :], len(PIECES))
    ids = pieces.encode("once upon a time.")
    assert min(ids) > 258  # bytes are for what has no piece
    named = [pieces.bytes_of[id_].decode() for id_ in ids]
    assert named == [" once", " ", "u", "p", "on", " ", "a", " ", "t", "i", "m", "e", "."]
    assert pieces.decode(pieces.encode("once é upon\ttime.")) == "once é upon time."


def test_pieces_are_drawn_as_often_as_the_temperature_says() -> None:
    scores = torch.tensor([2.0, 1.0, 0.0, -4.0]).repeat(20_000, 1)
    drawn = stories.drawn_pieces(scores, 0.5, generator("draws"))
    shares = torch.bincount(drawn, minlength=4) / 20_000
    expected = (torch.tensor([2.0, 1.0, -torch.inf, -torch.inf]) / 0.5).softmax(-1)  # 0 is below 2 % of the likeliest
    torch.testing.assert_close(shares, expected, rtol=0, atol=0.02)
    assert shares[2:].sum() == 0


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ('The dog said, "We can go home now."', None),
        ("The dog was happy and", "no end"),
        ('The dog said, "We can go home now.', "quotation marks"),
        ("They went to the park.", "a sentence twice"),
    ],
)
def test_what_is_plainly_wrong_with_a_story_is_seen(end: str, expected: str | None) -> None:
    begin = "Once there was a dog and a cat, who had been friends for a long time. They went to the park. They ran. They ran."
    assert stories.flaw(f"{begin} {end}") == expected
    assert stories.flaw(end) == "short"


def refused(call: Callable[..., None], *arguments: object) -> object:
    with pytest.raises(SystemExit) as exit_:
        call(*arguments)
    return exit_.value.code


def test_stories_are_drawn_until_the_file_is_large_enough_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").write_bytes(model_file()[0])
    first = tmp_path / "first.txt"
    first.write_text("once a b.\n\nonce on a.\n")
    out = tmp_path / "out.txt"
    monkeypatch.setattr(stories, "flaw", lambda text: None if text != "once a b." else "short")

    def draw(megabytes: float, *more: str) -> None:
        arguments = [str(tmp_path / "model"), "--first", str(first), "--out", str(out), "--rows", "4"]
        monkeypatch.setattr("sys.argv", ["draw", *arguments, "--megabytes", str(megabytes), *more])
        stories.main()

    draw(0.0005, "--first-share", "1")
    before = out.read_text()
    assert 500 <= out.stat().st_size < 700
    begun = [re.fullmatch(r"(once a b|once on a)\.[ once\n]*", story) for story in before.rstrip().split("\n\n")]
    assert {match and match[1] for match in begun} == {"once a b", "once on a"}  # "once" alone occurs twice
    assert any(story.count("once") > 1 for story in before.split("\n\n"))
    draw(0.001, "--first-share", "1")
    after = out.read_text()
    assert after.startswith(before)
    assert 1000 <= out.stat().st_size < 1200
    assert after[len(before) :][:100] not in before
    assert "short" in capsys.readouterr().out
    assert refused(draw, 0.002, "--out", str(tmp_path / "nowhere" / "out.txt")) == 1
    assert "No such file or directory" in capsys.readouterr().err
    (tmp_path / "model").write_bytes(model_file()[0][:3000])
    assert refused(draw, 0.002) == 2
    assert "weights end too early" in capsys.readouterr().err
    assert out.read_text() == after
