"""Exports and imports against Hugging Face's transformers, the real library.

    compare.py FOLDER TROUPE HF_LOGITS CONFIGS     exit 0: all agrees; 1: something does not; 77: no transformers here

A model is a function from prompts to logits: its weights in our checkpoint (HF_LOGITS computes) and in their files must be
the same one. Weights are so large that logits spread over several units and attention is not uniform; the sizes, rope's
base and the norms' epsilon are no defaults, so that each of them counts.
"""
import json
import os
import pathlib
import subprocess
import sys

try:
    import torch
    import transformers
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as why:
    print(f"{sys.executable}: {why}")
    sys.exit(77)

BOUND = 1e-4
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.manual_seed(1)


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Check:
    def __init__(self, folder, troupe, logits, configs):
        self.folder, self.troupe, self.hf_logits, self.configs = pathlib.Path(folder), troupe, logits, pathlib.Path(configs)
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(f"the {i * 7919 % 1000} actors exchange {i % 13} messages; " for i in range(400)))
        self.wrong = []

    def expect(self, ok, what):
        print(("ok     " if ok else "WRONG  ") + what)
        if not ok:
            self.wrong.append(what)

    def ours(self, checkpoint, tokens, vocab):
        files = self.folder / "tokens", self.folder / "logits"
        files[0].write_bytes(tokens.to(torch.int32).numpy().tobytes())
        run(self.hf_logits, checkpoint, len(tokens), *files)
        return torch.frombuffer(bytearray(files[1].read_bytes()), dtype=torch.float32).view(*tokens.shape, vocab)

    def compare(self, what, checkpoint, model):
        """Logits of random prompts, at every position."""
        config = model.config
        tokens = torch.randint(config.vocab_size, (5, config.max_position_embeddings))
        with torch.no_grad():
            theirs = model.eval()(tokens).logits
        far = (self.ours(checkpoint, tokens, config.vocab_size) - theirs).abs().max().item()
        spread = theirs.std().item()
        self.expect(far <= BOUND, f"{what}: logits differ by at most {far:.1e}")
        self.expect(spread > 0.5, f"{what}: logits spread by {spread:.2f}")

    def newest(self, folder):
        return max(folder.glob("step-*"))

    def train(self, out, *words):
        run(self.troupe, "train", *words, "--data", self.text, "--out", out, "--quiet")
        return [line["loss"] for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "loss" in line]

    def exported(self, tied):
        """What we have trained, loaded by them: as one file and as several."""
        what = f"exported, {'tied' if tied else 'untied'}"
        at = self.folder / what.replace(", ", "-")
        self.train(at, self.configs / "lm-tiny.toml", "--steps", "6", "--checkpoint-every", "3", "--mesh", "dp=2,pp=2", "--set", "model.init_std=0.3",
                   "--set", "model.rope_theta=700", "--set", "model.norm_eps=1e-3", "--set", f"model.tied={str(tied).lower()}", "--set", "schedule.lr=1e-2")
        run(self.troupe, "ckpt", "export", at / "checkpoints", "--format", "hf", "--out", at / "hf")
        run(self.troupe, "ckpt", "export", at / "checkpoints", "--format", "hf", "--out", at / "hf-files", "--file-bytes", "200000")
        model = LlamaForCausalLM.from_pretrained(at / "hf")
        self.expect(model.dtype == torch.float32, f"{what}: loaded as {model.dtype}")
        self.compare(what, self.newest(at / "checkpoints"), model)
        files = list((at / "hf-files").glob("*.safetensors"))
        divided = LlamaForCausalLM.from_pretrained(at / "hf-files")
        same = all(torch.equal(x, y) for x, y in zip(model.state_dict().values(), divided.state_dict().values(), strict=True))
        self.expect(same and len(files) > 3, f"{what}: {len(files)} files hold the same")

    def imported(self, tied, dtype, files):
        """What they have saved, loaded by us, trained, and given back."""
        what = f"imported, {'tied' if tied else 'untied'}, {str(dtype)[6:]}, {files}"
        at = self.folder / what.replace(", ", "-")
        config = LlamaConfig(vocab_size=259, hidden_size=60, intermediate_size=88, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
                             head_dim=14, max_position_embeddings=40, rms_norm_eps=2e-3, rope_theta=300.0,
                             tie_word_embeddings=tied, initializer_range=0.2)
        model = LlamaForCausalLM(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.3 * torch.randn_like(parameter))   # norms begin with ones
        model.to(dtype).save_pretrained(at / "hf", max_shard_size="60KB" if files == "several files" else "5GB")
        if files == "several files" and not (at / "hf/model.safetensors.index.json").exists():
            self.expect(False, f"{what}: there is an index")
        model = LlamaForCausalLM.from_pretrained(at / "hf", torch_dtype=torch.float32)   # not to(): that leaves rope's table rounded
        run(self.troupe, "ckpt", "import", at / "hf", "--out", at / "checkpoints")
        checkpoint = self.newest(at / "checkpoints")
        self.compare(what, checkpoint, model)

        run(self.troupe, "ckpt", "export", checkpoint, "--format", "hf", "--out", at / "back")
        back = load_file(at / "back/model.safetensors")
        names = {name for name in model.state_dict() if not (tied and name == "lm_head.weight")}
        same = names == back.keys() and all(torch.equal(back[name], model.state_dict()[name]) for name in names)
        self.expect(same, f"{what}: given back with the same bits")

        losses = self.train(at, "--resume", at / "checkpoints", "--steps", "30", "--set", "schedule.lr=3e-3", "--set", "schedule.warmup=0",
                            "--set", "schedule.batch=4", "--set", "model.seq=32", "--set", "run.seed=5")
        begin, end = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
        self.expect(len(losses) == 30 and end < begin - 0.5, f"{what}: 30 steps of training, loss {begin:.2f} to {end:.2f}")


def main():
    check = Check(*sys.argv[1:])
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for tied in False, True:
        check.exported(tied)
    check.imported(False, torch.float32, "several files")
    check.imported(True, torch.float32, "one file")
    check.imported(False, torch.bfloat16, "one file")
    check.imported(True, torch.float16, "several files")
    sys.exit(1 if check.wrong else 0)


if __name__ == "__main__":
    os.environ.setdefault("XDG_CACHE_HOME", "/nonexistent")   # what was calibrated here changes nothing
    main()
