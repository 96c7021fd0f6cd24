"""Generate text or train with a Llama model of Hugging Face transformers.

Settings:
    work: `generate` or `train`.
    model: Settings of `transformers.LlamaConfig`.
    compile: Use `torch.compile` for training, or a static cache and a compiled forward pass for generation.
    num_threads: Number of threads.
"""

import torch
import transformers

from benchmarks.workers import protocol


def main() -> None:
    settings = protocol.read_settings(__doc__)
    torch.manual_seed(0)
    torch.set_num_threads(settings["num_threads"])
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings["model"]))
    vocab_size, rows = settings["model"]["vocab_size"], settings["rows"]
    info = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": str(model.dtype),
        "num_threads": torch.get_num_threads(),
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    if settings["work"] == "generate":
        prompts = torch.randint(2, vocab_size, (rows, settings["prompt_length"]))
        mask = torch.ones_like(prompts)
        length = settings["num_new_tokens"]
        model.eval()
        options = {"max_new_tokens": length, "do_sample": False, "pad_token_id": 0}
        # Without an end token, each row generates `max_new_tokens` tokens.
        model.generation_config.eos_token_id = None
        if settings["compile"]:
            compilation = transformers.CompileConfig(mode="default")
            # By default, `generate` does not compile on CPUs.
            compilation._compile_all_devices = True
            options |= {"cache_implementation": "static", "compile_config": compilation}

        @torch.inference_mode()
        def run():
            output = model.generate(prompts, attention_mask=mask, **options)
            if output.shape[1] != prompts.shape[1] + length:
                raise AssertionError("generation stopped early")

        work = rows * length
    else:
        tokens = torch.randint(0, vocab_size, (rows, settings["length"]))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        model.train()
        forward = torch.compile(model) if settings["compile"] else model

        def run():
            loss = forward(tokens, labels=tokens).loss
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        work = tokens.numel()
    protocol.serve(run, work, settings["seconds"], **info)


if __name__ == "__main__":
    main()
