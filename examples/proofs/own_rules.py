"""Write facts and rules, prove a query, train a prover, and rank possible answers.

The facts describe parts of things and their materials. The script writes them to the files that `phalanx
prove`, `phalanx train` and `phalanx eval` read, so each step is also available as a command.

python examples/proofs/own_rules.py     (half a minute of CPU time)
"""

import argparse
from pathlib import Path

from phalanx.kg import (
    KnowledgeBase,
    Proof,
    Prover,
    draw_proof,
    parse_atom,
    parse_query,
    parse_rule,
    prove,
)
from phalanx.proofs import BeamSearchConfig, LinkPredictionConfig
from phalanx.training import PPO, PPOConfig, next_free_dir, train

FACTS = """
part(wheel,bicycle)  part(frame,bicycle)   part(bell,bicycle)   part(chain,bicycle)
part(wheel,cart)     part(bed,cart)        part(shaft,cart)     part(wheel,wagon)    part(roof,wagon)
part(rim,wheel)      part(spoke,wheel)     part(hub,wheel)      part(tyre,wheel)
part(tube,frame)     part(saddle,frame)    part(link,chain)     part(plank,bed)      part(plank,roof)
part(dome,bell)      part(hammer,bell)     part(cover,saddle)   part(spring,saddle)  part(bearing,hub)
of(rim,alloy)        of(spoke,steel)       of(tyre,rubber)      of(bearing,steel)    of(tube,alloy)
of(link,steel)       of(plank,oak)         of(dome,brass)       of(hammer,steel)     of(cover,leather)
of(spring,steel)     of(shaft,oak)
"""
RULES = """
direct:1.0:part(b,a) -> has(a,b)
nested:1.0:part(h,a), has(h,b) -> has(a,b)
itself:1.0:of(a,b) -> holds(a,b)
inside:1.0:has(a,h), of(h,b) -> holds(a,b)
"""


def knowledge() -> KnowledgeBase:
    """Create a knowledge base. A third of what follows from the text are facts, the rest are queries."""
    facts = tuple(map(parse_atom, FACTS.split()))
    rules = tuple(map(parse_rule, RULES.strip().splitlines()))
    given = KnowledgeBase(facts, rules)
    prover = Prover(facts, rules)
    follows = [
        answer.goal
        for predicate in ("has", "holds")
        for answer in prover.answers(parse_query(given, f"{predicate}(X,Y)"), max_depth=9)
    ]
    return KnowledgeBase(
        (*facts, *follows[::3]), rules, valid=tuple(follows[1::3]), test=tuple(follows[2::3])
    )


def tree(proof: Proof, indent: str = "") -> str:
    """Return a proof as text: one line per goal, followed by the goals that its rule requires."""
    lines = [f"{indent}{proof.goal}  {'fact' if proof.rule is None else 'by ' + proof.rule.name}"]
    return "\n".join([*lines, *(tree(child, indent + "    ") for child in proof.children)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("query", nargs="?", default="holds(bicycle,leather)")
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("out/examples/own_rules"))
    arguments = parser.parse_args()
    out = next_free_dir(arguments.out)
    knowledge().save(out / "things")
    data = KnowledgeBase.load(out / "things")
    print(data)

    proof = prove(data, arguments.query)
    draw_proof(proof).save_svg(str(out / "proof.svg"))
    print(f"\n{tree(proof)}\n{proof.depth} steps, drawn in {out / 'proof.svg'}\n")

    config = PPOConfig.load(
        "proofs",
        (
            f"env.dataset={out / 'things'}",
            f"num_envs={arguments.num_envs}",
            "num_steps=32",
            f"num_updates={arguments.updates}",
            "evaluation.every=0",
            "env.compute_depths_up_to=9",
            "logging.sample_frequency=0",
        ),
    )
    training = PPO(config)
    outcome = train(training, out / "run")
    first, last = (record["proved_rate"] for record in (outcome.evaluations[0], outcome.evaluations[-1]))
    print(f"unseen truths that the policy proves: {first:.0%} before, {last:.0%} after training")

    # A search guided by the policy, and the exact prover; both take a proof as a reason to believe.
    for mode in ("policy", "exact"):
        settings = LinkPredictionConfig(mode=mode, beam=BeamSearchConfig(beam_width=4, max_depth=9))
        (result,) = training.evaluate(outcome.state, settings, final=True)
        print(result)


if __name__ == "__main__":
    main()
