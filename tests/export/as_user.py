"""A program that uses an exported folder as its user would: `python as_user.py FOLDER RESULT`."""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

folder, result = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
texts = ["0 the quick brown fox", "a lazy dog over the quick brown fox jumps", "1"]
greedy = {"max_new_tokens": 12, "do_sample": False}
batch = tokenizer(texts, return_tensors="pt", padding=True)
found: dict[str, object] = {"padding": tokenizer.padding_side}


def raised(**options: object) -> str:
    try:
        model(**options)
    except ValueError as error:
        return str(error)
    return ""


with torch.no_grad():
    together = model.generate(**batch, **greedy)[:, batch["input_ids"].size(1) :]
    alone = [tokenizer(text, return_tensors="pt") for text in texts]
    apart = [model.generate(**one, **greedy)[0, one["input_ids"].size(1) :].tolist() for one in alone]
    uncached = [
        model.generate(**one, **greedy, use_cache=False)[0, one["input_ids"].size(1) :].tolist() for one in alone
    ]
    found["together"], found["apart"], found["uncached"] = together.tolist(), apart, uncached
    beams = {"max_new_tokens": 12, "num_beams": 3, "do_sample": False}
    found["beams"], found["beams_uncached"] = (
        model.generate(**batch, **beams, use_cache=use_cache).tolist() for use_cache in (True, False)
    )
    found["text"] = tokenizer.decode(together[0], skip_special_tokens=True)
    tokens = alone[1]["input_ids"]
    found["tuple"] = len(model(tokens, return_dict=False))
    logits = model(tokens).logits
    loss = model(tokens, labels=tokens).loss
    expected = torch.nn.functional.cross_entropy(logits[0, :-1].double(), tokens[0, 1:])
    found["loss"] = [loss.item(), expected.item()]
    hole = torch.tensor([[1, 0, 1]])
    found["refusals"] = [
        raised(input_ids=tokens[:, :3], attention_mask=hole),
        raised(input_ids=tokens[:, :3], attention_mask=hole[:, :2]),
        raised(input_ids=tokens, cache=model(tokens, use_cache=True)[1], past_key_values=1),
    ]
    behind = torch.nn.functional.pad(tokens, (0, 2))
    mask = (torch.arange(behind.size(1)) < tokens.size(1)).long()[None]
    found["padding_behind"] = (model(behind, attention_mask=mask).logits[:, :-2] - logits).abs().max().item()

half = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.bfloat16)
fresh = AutoModelForCausalLM.from_config(
    AutoConfig.from_pretrained(folder, trust_remote_code=True), trust_remote_code=True
)
types = {name: str(tensor.dtype) for name, tensor in half.to(torch.bfloat16).state_dict().items()}
found["types"] = types
found["of_bf16"] = (half(tokens).logits.float() - logits).abs().max().item()
found["fresh_is_finite"] = bool(fresh(tokens).logits.isfinite().all())
model.train()(tokens, labels=tokens).loss.backward()
found["without_gradient"] = [name for name, parameter in model.named_parameters() if parameter.grad is None]
model.eval().save_pretrained(Path(result).parent / "saved")
again = AutoModelForCausalLM.from_pretrained(Path(result).parent / "saved", trust_remote_code=True)
found["saved_again"] = torch.equal(again(tokens).logits, model(tokens).logits)
Path(result).write_text(json.dumps(found), encoding="utf-8")
