"""XLNet: our network with its settings says what transformers' XLNetLMHeadModel says under a permutation mask."""

import pytest
import torch
from torch import Tensor
from transformers import XLNetConfig, XLNetLMHeadModel

from fakes import MASK, make_batch, random_rows, tiny_model
from pmlm.likelihood import order_logp
from pmlm.model import LanguageModel, Slots
from pmlm.visibility import order_causal_inputs

VOCAB, WIDTH, HEADS, LAYERS, FF, LENGTH = 11, 32, 4, 2, 48, 9


def theirs_and_ours(seed: int) -> tuple[XLNetLMHeadModel, LanguageModel]:
    torch.manual_seed(seed)
    config = XLNetConfig(vocab_size=VOCAB, d_model=WIDTH, n_layer=LAYERS, n_head=HEADS, d_inner=FF, dropout=0.0, layer_norm_eps=1e-9,
                         mem_len=None)  # fmt: skip
    theirs = XLNetLMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    ours = tiny_model(vocab_size=VOCAB, num_layers=LAYERS, width=WIDTH, num_heads=HEADS, ff_width=FF, max_length=24, relative_clip=23,
                      positions="transformer-xl", norm="post", norm_input=False, norm_eps=1e-9, head="bias", forbidden_ids=(MASK,),
                      visibilities=("two-stream",))  # fmt: skip
    ours.load_state_dict(ours.state_dict() | {name: t.detach() for name, t in copied(theirs).items()})
    return theirs, ours


def copied(theirs: XLNetLMHeadModel) -> dict[str, Tensor]:
    """Their weights under our names. They have no biases in attention, and keep sines and cosines apart."""
    body = theirs.transformer
    tokens = body.word_embedding.weight.clone()
    tokens[MASK] = body.mask_emb[0, 0]  # the query's input, which nobody reads as a token
    state = {"backbone.tokens.weight": tokens, "head.bias": theirs.lm_loss.bias}
    apart = torch.cat([torch.arange(0, WIDTH, 2), torch.arange(1, WIDTH, 2)])
    for n, layer in enumerate(body.layer):
        attention, at = layer.rel_attn, f"backbone.layers.{n}"
        state |= {
            f"{at}.attention.qkv.weight": torch.cat([w.flatten(1).T for w in (attention.q, attention.k, attention.v)]),
            f"{at}.attention.qkv.bias": torch.zeros(3 * WIDTH),
            f"{at}.attention.tables.project.weight": attention.r.flatten(1).T[:, apart.argsort()],
            f"{at}.attention.tables.content_bias": attention.r_w_bias,
            f"{at}.attention.tables.distance_bias": attention.r_r_bias,
            f"{at}.project.weight": attention.o.flatten(1),
            f"{at}.project.bias": torch.zeros(WIDTH),
            f"{at}.attention_norm.weight": attention.layer_norm.weight,
            f"{at}.attention_norm.bias": attention.layer_norm.bias,
            f"{at}.up.weight": layer.ff.layer_1.weight,
            f"{at}.up.bias": layer.ff.layer_1.bias,
            f"{at}.down.weight": layer.ff.layer_2.weight,
            f"{at}.down.bias": layer.ff.layer_2.bias,
            f"{at}.ff_norm.weight": layer.ff.layer_norm.weight,
            f"{at}.ff_norm.bias": layer.ff.layer_norm.bias,
        }
    return state


def permutation(rank_BL: Tensor) -> Tensor:
    """Their mask: 1 where i may not look at j. A given token sees all given ones, a target those before it."""
    sees = (rank_BL[:, None, :] < rank_BL[:, :, None]) | ((rank_BL[:, None, :] == 0) & (rank_BL[:, :, None] == 0))
    return (~sees).float()


@pytest.mark.parametrize("seed", [0, 1, 2])
@torch.no_grad()
def test_logits_are_those_of_transformers_under_a_permutation_mask(seed: int) -> None:
    theirs, ours = theirs_and_ours(seed)
    rows = random_rows(3, LENGTH, seed, VOCAB)
    batch = make_batch(rows, [[True] * LENGTH] * 3, pad_id=MASK)
    rng = torch.Generator().manual_seed(seed)
    targets = torch.stack([torch.randperm(LENGTH, generator=rng)[:4] for _ in range(3)])  # in the order of prediction
    rank = torch.zeros_like(batch.ids_BL).scatter(1, targets, torch.arange(1, 5).expand(3, -1))
    mapping = torch.nn.functional.one_hot(targets, LENGTH).float()
    expected = theirs(batch.ids_BL, perm_mask=permutation(rank), target_mapping=mapping, use_mems=False).logits
    inputs = order_causal_inputs(batch, rank, MASK, sees_itself=False)
    at = Slots(torch.arange(3).repeat_interleave(4), targets.flatten() + LENGTH)
    got = ours(inputs, at).unflatten(0, (3, 4))
    assert (got - expected)[..., 1:].abs().max() < 1e-4
    assert expected.std() > 0.5


@torch.no_grad()
def test_a_whole_order_after_one_given_token_has_their_likelihood() -> None:
    theirs, ours = theirs_and_ours(3)
    batch = make_batch(random_rows(1, LENGTH, 3, VOCAB), [[False] + [True] * (LENGTH - 1)], pad_id=MASK)
    order = torch.randperm(LENGTH - 1, generator=torch.Generator().manual_seed(3)) + 1
    rank = torch.zeros_like(batch.ids_BL)
    rank[0, order] = torch.arange(1, LENGTH)
    mapping = torch.nn.functional.one_hot(order, LENGTH).float()[None]
    logits = theirs(batch.ids_BL, perm_mask=permutation(rank), target_mapping=mapping, use_mems=False).logits
    logits[..., MASK] = -torch.inf  # as ours
    expected = logits[0].log_softmax(-1).gather(1, batch.ids_BL[0, order][:, None])[:, 0]
    got = order_logp(ours, batch, rank, "two-stream")[0, order]
    assert torch.allclose(got.float(), expected, atol=1e-4)
