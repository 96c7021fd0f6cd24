"""Fine-tune on packed conversations with TRL's SFTTrainer, with a loss on the assistant's turns only.

python examples/trainers/trl_sft.py

It needs `pip install ".[hf,trl]"`. It downloads nothing, because it creates the model and the tokenizer.
"""

import argparse
import tempfile
from typing import Any

from hf_trainer import show
from tiny_model import Samples, planned, tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import SFTConfig, SFTTrainer

from phalanx.data import TokenizeConfig, load_chat_template, load_tokenizer, tokenize_rows
from phalanx.integrations.hf_datasets import to_iterable_dataset
from phalanx.integrations.hf_trainer import PlanTrainerMixin
from phalanx.integrations.torch_data import PlanDataset

TEMPLATE = (
    "{% for message in messages %}{{ '<' + message.role[0] + '>' + message.content + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
)


class PlanSFTTrainer(PlanTrainerMixin, SFTTrainer):
    """An SFT trainer that trains on the batches of a plan."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with an end-of-turn token and a chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<end>")
    made.chat_template = TEMPLATE
    return made


def conversations(count: int) -> list[dict[str, Any]]:
    """Create conversations with two questions and two answers."""
    return [
        {
            "id": f"chat-{n}",
            "messages": [
                {"role": "user", "content": f"{n}+{n}?"},
                {"role": "assistant", "content": "Hm. " * (n % 4) + f"{2 * n}"},
                {"role": "user", "content": "More" * (n % 3 + 1)},
                {"role": "assistant", "content": f"{4 * n}"},
            ],
        }
        for n in range(count)
    ]


def tokenized(count: int, processing: PreTrainedTokenizerFast) -> Samples:
    """Tokenize conversations with the tokenizer's files, as if they came from a disk or the Hub."""
    with tempfile.TemporaryDirectory() as folder:
        processing.save_pretrained(folder)
        tokenizer, chat = load_tokenizer(folder), load_chat_template(folder)
    rows = tokenize_rows(conversations(count), tokenizer, TokenizeConfig(format="chat"), chat=chat)
    return {row.sample_id: {"input_ids": row.input_ids, "loss_mask": row.loss_mask} for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    disable_progress_bar()
    processing = byte_tokenizer()
    samples = tokenized(options.samples, processing)
    plan = planned(samples, options.epochs)
    print(f"batches of each epoch: {[len(epoch) for epoch in plan.epochs]}")

    def trainer(folder: str, *callbacks: TrainerCallback) -> PlanSFTTrainer:
        arguments = SFTConfig(
            output_dir=folder,
            dataset_kwargs={"skip_prepare_dataset": True},
            learning_rate=3e-3,
            logging_steps=1,
            save_steps=2,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        )
        made = PlanSFTTrainer(
            model=tiny_model(len(processing)),
            args=arguments,
            batches=PlanDataset(plan, samples, all_epochs=True),
            train_dataset=to_iterable_dataset(plan, samples),  # which it looks at, to see what rows are
            processing_class=processing,
            callbacks=callbacks,
        )
        made.remove_callback(PrinterCallback)
        return made

    show(trainer, lambda packed: planned(samples, 1, packed=packed), samples)


if __name__ == "__main__":
    main()
