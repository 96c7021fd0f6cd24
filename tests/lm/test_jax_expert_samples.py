"""Expert answers of ARC and proofs as samples."""

import itertools

from phalanx.arc.generators import generate_tasks
from phalanx.arc.text import OPERATION_NAMES, compact_task
from phalanx.lm import LMTokenizer
from phalanx.lm.expert_samples import generate_expert_samples
from phalanx.training import SFTConfig, open_data

TOKENIZER = LMTokenizer("characters")


def test_expert_of_proofs_proves_true_queries_and_gives_up_on_false_ones() -> None:
    config = SFTConfig.load(env="proofs").env
    env = config.make()
    samples = list(itertools.islice(generate_expert_samples(config.make, "characters"), 150))
    assert samples == list(itertools.islice(generate_expert_samples(config.make, "characters"), 150))
    answers: dict[int, list[str]] = {}
    for sample in samples:
        answer = TOKENIZER.decode(sample.input_ids[sample.loss_mask == 1].tolist())
        answers.setdefault(int(sample.sample_id.split("-")[2]), []).append(answer)
    complete = {seed: own for seed, own in answers.items() if seed < 64}
    env.reset(list(complete))
    for step in range(max(map(len, complete.values()))):
        result = env.step([own[step] if step < len(own) else "" for own in complete.values()])
    assert all(info.solved for info in result.infos)
    assert {len(own) for own in complete.values()} > {1}
    assert {"True", "give up"} <= {own[-1] for own in complete.values()}


def test_arc_samples_show_the_other_pairs_but_not_the_answer() -> None:
    settings = (
        "env.id=arc",
        "env.dataset.num_generated_tasks=120",
        "data.num_eval_samples=3",
        "data.max_length=512",
        "data.packs_per_buffer=4",
    )
    data = open_data(SFTConfig.load(None, settings))
    assert [sample.sample_id.split("-")[1] for sample in data.eval_samples] == ["validation"] * 3
    assert data.plan is not None
    assert data.get_batch(next(data.plan.batches())).real_tokens > 0
    (task,) = generate_tasks(["fill_enclosed"], 1)
    text = compact_task(task, 1, task.demos[1].input, task.demos[1].input)
    outputs = ["/".join("".join(map(str, row)) for row in pair.output.tolist()) for pair in task.demos]
    assert all(
        (f"={output}\n" in text) == (index != 1)
        for index, output in enumerate(outputs)
        if outputs.count(output) == 1
    )
    sample = data.eval_samples[0]
    answer = LMTokenizer("bytes").decode(sample.input_ids[sample.loss_mask == 1].tolist())
    assert answer.split()[0] in OPERATION_NAMES
