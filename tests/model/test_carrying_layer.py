"""States of tokens travel through the layers of a model beside its hidden states."""

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from megatron_mep.encodings.tape import Tape
from megatron_mep.model.cache import Cache
from megatron_mep.model.core_attention import encoded_layers
from megatron_mep.model.count import num_parameters, padded_vocabulary
from megatron_mep.model.decode import Decoder, cache_bytes
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.groups import seed_streams
from megatron_mep.parallel.tensor import is_encoding_weight
from tests.attention.oracle import LargestStorage
from tests.support.distributed import joined, run
from tests.support.results import losses_of
from tests.support.tiny import SEQ_LENGTH, VOCABULARY, model_config, samples
from tests.support.tolerance import assert_exact_equal, assert_within_budget

LAYERS, HEADS, HEAD_SIZE, HIDDEN = 3, 4, 8, 32
TAPE = {"name": "tape", "width": 6}
SEED = 3


class Elsewhere(Tape):
    """TAPE whose positions are counted from another place: the random start of sequences in its public code."""

    name: str = "elsewhere"  # type: ignore[assignment]
    source: ClassVar[str] = "none"
    first: int = 0

    def initial(self, position: Tensor, head_size: int) -> Tensor:
        return super().initial(position.double() + self.first, head_size)


def built(recompute: Any = "none", moved: float = 0.5, **changes: Any) -> nn.Module:
    """A model of three layers whose encoding's weights are moved from their start, where states would rest."""
    changes = {"encoding": TAPE, "num_layers": LAYERS, **changes}
    model = build_model(model_config(**changes), ParallelConfig(), VOCABULARY, SEED, torch.float32, recompute)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in filter(is_encoding_weight, model.parameters()):
            parameter.add_(moved * torch.randn(parameter.shape, generator=generator))
    return model


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model.eval()(tokens, None, None, runtime_gather_output=True)[..., :VOCABULARY]
    return logits


def public_code(model: nn.Module, tokens: Tensor, groups: int, mixed: bool) -> Tensor:
    """The logits of the whole model in fp64, cos and sin of all D dimensions apart, as the public code has them."""
    at = {name: parameter.detach().double() for name, parameter in model.named_parameters()}

    def norm(x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * at[f"{name}.weight"]

    def half(x: Tensor) -> Tensor:
        return torch.cat((-x[..., HEAD_SIZE // 2 :], x[..., : HEAD_SIZE // 2]), dim=-1)

    length = tokens.size(1)
    x = at["embedding.word_embeddings.weight"][tokens]  # [B, S, hidden]
    frequency = 10_000.0 ** -(torch.arange(HEAD_SIZE // 2, dtype=torch.float64) * 2 / HEAD_SIZE)
    angle = (torch.arange(length).double()[:, None] * frequency).repeat(1, 2)
    cos, sin = (f(angle).expand(len(tokens), HEADS, -1, -1) for f in (torch.cos, torch.sin))  # [B, H, S, D]
    future = torch.ones(length, length).triu(1).bool()
    for layer in range(LAYERS):
        here = f"decoder.layers.{layer}"
        qkv = norm(x, f"{here}.input_layernorm") @ at[f"{here}.self_attention.linear_qkv.weight"].T
        qkv = qkv.unflatten(-1, (groups, HEADS // groups + 2, HEAD_SIZE))
        query = qkv[..., :-2, :].flatten(2, 3).transpose(1, 2)
        key, value = (
            qkv[..., place, :].repeat_interleave(HEADS // groups, dim=2).transpose(1, 2) for place in (-2, -1)
        )
        query, key = (each * cos + half(each) * sin for each in (query, key))
        probs = (query @ key.mT / HEAD_SIZE**0.5).masked_fill(future, -torch.inf).softmax(-1)
        context = (probs @ value).transpose(1, 2).flatten(2)
        x = x + context @ at[f"{here}.self_attention.linear_proj.weight"].T
        gate, up = (norm(x, f"{here}.pre_mlp_layernorm") @ at[f"{here}.mlp.linear_fc1.weight"].T).chunk(2, dim=-1)
        output = (functional.silu(gate) * up) @ at[f"{here}.mlp.linear_fc2.weight"].T
        x = x + output
        if layer < LAYERS - 1:
            mix, up, gate, down = (
                at[f"{here}.self_attention.core_attention.encoding_weights.{name}"]
                for name in ("mix", "up", "gate", "down")
            )
            after = mix if mixed else mix.sum(1).diag()
            cos, sin = (each + torch.einsum("hk,bksd->bhsd", after, probs @ each) for each in (cos, sin))
            gates = functional.silu(output @ gate.T)
            cos, sin = (each + torch.einsum("hw,bsw,wk,bksd->bhsd", down, gates, up, each) for each in (cos, sin))
    return norm(x, "decoder.final_layernorm") @ at["output_layer.weight"][:VOCABULARY].T


@pytest.mark.parametrize(("groups", "attended"), [(4, "scaled"), (2, "mixed"), (1, "scaled")])
def test_logits_are_those_of_the_public_code(groups: int, attended: str):
    run(_public, 1, groups, attended)


def _public(groups: int, attended: str):
    joined()
    model, tokens = built(encoding={**TAPE, "attended": attended}, num_query_groups=groups), samples(0, 2)
    expected = public_code(model, tokens, groups, mixed=attended == "mixed")
    # the widths of rounding: states start from angles in fp32
    torch.testing.assert_close(logits_of(model.double(), tokens), expected, rtol=1e-5, atol=1e-6)
    still = logits_of(built(moved=0.0, num_query_groups=groups).double(), tokens)
    assert (still - expected).abs().max() > 1e-3, "the steps of the states are too small to be seen"


def test_a_model_starts_as_one_with_rope():
    run(_starts, 1)


def _starts():
    joined()
    tokens, found = samples(0, 3), {}
    for name in ("rope", "tape"):
        model = built(encoding={"name": name}, moved=0.0, num_query_groups=2)
        found[name] = {"losses": losses_of(model, tokens)}
        found[name]["losses"].mean().backward()
        found[name] |= {key: weight.grad for key, weight in model.named_parameters() if not is_encoding_weight(weight)}
    exact = built(encoding={"name": "rope"}, num_query_groups=2).double()
    losses = losses_of(exact, tokens)
    losses.mean().backward()
    gradients = {key: weight.grad for key, weight in exact.named_parameters()}
    assert found["tape"].keys() == found["rope"].keys()
    for key, plain in found["rope"].items():
        truth = losses if key == "losses" else gradients[key]
        assert_within_budget(found["tape"][key].detach(), plain.detach(), truth.detach().double(), key)


def test_where_positions_are_counted_from_changes_nothing():
    run(_elsewhere, 1)


def _elsewhere():
    joined()
    tokens = samples(0, 2)
    named = {"name": f"{__name__}:Elsewhere", "width": 6}
    here, there = (logits_of(built(encoding=named | {"first": first}).double(), tokens) for first in (0, 2000))
    # the angle of position 2000 has an error of 2e-13, and scores sum some of them
    torch.testing.assert_close(there, here, rtol=1e-9, atol=1e-10)
    one = model_config(encoding=named, num_layers=1)
    assert not one.encoding.initial(torch.zeros(1), 2).equal(Elsewhere(first=2000).initial(torch.zeros(1), 2))


def test_every_weight_learns_and_the_last_layer_has_none():
    run(_learns, 1)


def _learns():
    joined()
    model = built(linear_bias=True)
    losses_of(model, samples(0, 2)).mean().backward()
    weights = {name: weight for name, weight in model.named_parameters() if is_encoding_weight(weight)}
    assert len(weights) == (LAYERS - 1) * 4
    assert not any(f"layers.{LAYERS - 1}" in name for name in weights)
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().max() > 0, name
    for config in (model_config(encoding=TAPE, num_layers=layers, linear_bias=True) for layers in (1, LAYERS)):
        alike = build_model(config, ParallelConfig(), VOCABULARY, SEED)
        trained = sum(parameter.numel() for parameter in alike.parameters())
        assert num_parameters(config, padded_vocabulary(VOCABULARY, 1)) == trained


@pytest.mark.parametrize("changes", [{"hidden_dropout": 0.1}, {"attention_dropout": 0.1, "linear_bias": True}])
def test_recomputed_activations_change_nothing(changes: dict[str, Any]):
    run(_recompute, 1, changes)


def _recompute(changes: dict[str, Any]):
    joined()
    found = {}
    for recompute in ("none", "selective", "full"):
        model = built(recompute, **changes).train()
        seed_streams(SEED)
        found[recompute] = [losses := losses_of(model, samples(0, 2))]
        losses.mean().backward()
        found[recompute] += [parameter.grad for parameter in model.parameters()]
    assert not torch.equal(found["none"][0], losses_of(model, samples(0, 2))), f"{changes} drop nothing"
    for recompute in ("selective", "full"):
        for actual, expected in zip(found[recompute], found["none"], strict=True):
            assert_exact_equal(actual, expected, recompute)


@pytest.mark.parametrize("groups", [4, 2])
def test_cached_states_give_the_logits_of_a_full_forward(groups: int):
    run(_cached, 1, groups)


def _cached(groups: int):
    joined()
    model, length = built(num_query_groups=groups), 2 * SEQ_LENGTH
    tokens = samples(0, 2, length)[:, :length]
    decoder = Decoder(model, VOCABULARY, length, batch_size=2)
    cached = [decoder.read(tokens[:, :20], num_logits=20, chunk_size=7)]
    cached += [decoder.read(tokens[:, [place]]) for place in range(20, length)]
    plain = logits_of(model, tokens)
    assert_within_budget(torch.cat(cached, dim=1), plain, logits_of(model.double(), tokens))


def test_the_cache_takes_what_is_told():
    run(_taken, 1)


def _taken():
    joined()
    decoder = Decoder(built(num_query_groups=2).bfloat16(), VOCABULARY, max_length=9, batch_size=2)
    decoder.read(samples(0, 2, 3))
    kept = [*decoder._cache.key_value_memory_dict.values(), decoder._cache._states.values()]
    taken = sum(part.nbytes for parts in kept for part in parts)
    config = model_config(encoding=TAPE, num_layers=LAYERS, num_query_groups=2)
    assert taken == cache_bytes(config, 1, 9, torch.bfloat16, batch_size=2)


def test_samples_change_places_with_their_states():
    states = torch.rand(9, 2, HEADS, HEAD_SIZE, generator=torch.Generator().manual_seed(0))
    cache = Cache(2, 9)
    assert cache.states_with(states[:5], layer_number=1).equal(states[:5])
    cache.sequence_len_offset = 5
    cache.key_value_memory_dict[1] = (torch.zeros(9, 2, 1), torch.zeros(9, 2, 1))
    cache.swap_key_value_dict(torch.tensor([1, 0]))
    assert cache.states_with(states[5:].flip(1), layer_number=1).equal(states.flip(1))
    cache.batch_size_offset = 1
    assert cache.states_with(states[5:, :1], layer_number=2).shape == (9, 1, HEADS, HEAD_SIZE)


def test_no_tensor_grows_with_the_square_of_the_length():
    run(_memory, 1)


def _memory():
    joined()
    length = 1024
    with LargestStorage() as largest:
        losses_of(built(num_layers=2), samples(0, 1, length)).mean().backward()
    assert largest.numel < length**2, "scores of a single head"


def test_states_of_a_bf16_model_stay_fp32():
    run(_bf16, 1)


def _bf16():
    joined()
    model, tokens, streams = built(moved=0.0).bfloat16(), samples(0, 2, 600), []
    model.decoder.layers[1].register_forward_hook(lambda *call: streams.append(call[2][0]))
    model.decoder.register_forward_hook(lambda *call: streams.append(call[2]))
    losses_of(model, tokens).mean().backward()
    stream, hidden = streams
    assert (stream.dtype, hidden.dtype) == (torch.float32, torch.bfloat16)
    assert stream[..., :HIDDEN].equal(stream[..., :HIDDEN].bfloat16().float()), "hidden states pass without loss"
    expected = Tape().initial(torch.arange(600, dtype=torch.float32), HEAD_SIZE)
    assert_exact_equal(stream[:, 1, HIDDEN:].detach(), expected.repeat(1, HEADS))
    trained = built().bfloat16()
    losses_of(trained, tokens).mean().backward()
    for name, weight in trained.named_parameters():
        assert weight.dtype == (torch.float32 if is_encoding_weight(weight) else torch.bfloat16)
        assert weight.grad.isfinite().all(), name


def test_heads_on_several_ranks_are_refused():
    run(_refused, 2)


def _refused():
    joined(tensor=2)
    with pytest.raises(AssertionError, match="heads to mix are elsewhere"):
        build_model(model_config(encoding=TAPE), ParallelConfig(tensor=2), VOCABULARY, SEED)


def test_the_line_at_start_up_names_it():
    run(_told, 1)


def _told():
    joined()
    for layer in encoded_layers(built()):
        assert layer.in_force.startswith("tape, causal mask, plain attention")
