"""`docs/reference/config.md`: every setting of every public config model, and the presets.

The models are the one truth: names, types, defaults, bounds and docstrings are read from them.
"""

import enum
import importlib
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from phalanx.config import PRESET_FOLDER, Config

GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "ARC": {
        "phalanx.arc.config": (
            "ArcConfig",
            "EpisodeConfig",
            "DatasetConfig",
            "ActionConfig",
            "RewardConfig",
            "ObservationConfig",
        )
    },
    "Proofs": {
        "phalanx.proofs.config": (
            "ProofConfig",
            "QueryConfig",
            "ProofRewardConfig",
            "FamilyConfig",
            "CurriculumStage",
            "ProofEvaluationConfig",
        ),
        "phalanx.kg.kge.models": ("KGEModelConfig",),
        "phalanx.proofs.score_combination": ("HybridConfig",),
        "phalanx.kg.rules.mining": ("MiningConfig",),
        "phalanx.kg.path_network": ("PathNetworkConfig",),
    },
    "Token batches": {
        "phalanx.data.plans.batching_config": ("BatchingConfig",),
        "phalanx.data.packing": ("PackingConfig",),
        "phalanx.data.plans.buckets": ("BucketSpec",),
        "phalanx.data.plans.sharding": ("ShardSpec",),
        "phalanx.data.plans.streaming_plan": ("StreamingPlanConfig",),
        "phalanx.data.plans.mixture": ("Mixture", "MixtureStage"),
        "phalanx.data.tokenization": ("TokenizeConfig",),
    },
    "Streams": {
        "phalanx.data.replay_buffer": ("ReplayBufferConfig",),
        "phalanx.data.replay_planner": ("ReplayPlannerConfig",),
        "phalanx.puzzles.server_client.episodes": ("CollectConfig",),
        "phalanx.puzzles.server_client.pool": ("ConnectionPoolConfig",),
        "phalanx.puzzles.server_client.client": ("PuzzleClientConfig",),
        "phalanx.compat.chuk_lazarus.data.batching.streaming.gym_stream": ("GymConfig",),
    },
    "Training": {
        "phalanx.arc.evaluation": ("ArcEvaluationConfig", "ArcEvalConfig"),
        "phalanx.training.bc": ("BCConfig",),
        "phalanx.arc.networks": ("ArcNetworkConfig",),
        "phalanx.arc.networks.transduction": ("TransductionNetworkConfig",),
        "phalanx.training.ppo": ("PPOConfig",),
        "phalanx.core.evaluation": ("EvaluationConfig", "EpisodeEvaluationConfig"),
        "phalanx.training.config": ("RunConfig", "PolicyConfig", "EnvConfig", "CheckpointConfig"),
        "phalanx.proofs.network": ("ProofNetworkConfig",),
        "phalanx.training.kge": ("KGEConfig", "KGEEvaluationConfig"),
        "phalanx.proofs.link_prediction": ("LinkPredictionConfig",),
        "phalanx.proofs.search.beam": ("BeamSearchConfig",),
        "phalanx.proofs.search.best_first": ("BestFirstConfig",),
        "phalanx.proofs.search.heuristics": ("HeuristicNetworkConfig",),
        "phalanx.training.search_heuristic": (
            "HeuristicConfig",
            "HeuristicEvaluationConfig",
        ),
    },
    "Language model": {
        "phalanx.training.sft": ("SFTConfig", "SFTDataConfig"),
        "phalanx.training.grpo": ("GRPOConfig",),
        "phalanx.training.curriculum": ("CurriculumConfig",),
        "phalanx.training.optimizer": ("OptimizerConfig",),
        "phalanx.lm.model": ("LanguageModelConfig",),
        "phalanx.lm.sampling": ("SamplingConfig",),
        "phalanx.lm.evaluation": ("TextEvalConfig",),
        "phalanx.text.env_spec": ("TextEnvConfig",),
        "phalanx.puzzles.server_client.env": ("PuzzleServerEnvConfig",),
    },
    "Logging": {"phalanx.logging.config": ("LoggingConfig",)},
}
"""The models by the page's sections and their modules; a test says which one is missing."""

_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"), ("min_length", "length ≥"))


def models() -> Iterator[tuple[str, str, type[BaseModel]]]:
    """(section, module, model) of every public config."""
    for group, modules in GROUPS.items():
        for module, names in modules.items():
            for name in names:
                yield group, module, getattr(importlib.import_module(module), name)


def page() -> str:
    """The page's Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    known = {model for _, _, model in models()}
    yield "# Settings"
    yield ""
    yield (
        "Made from the config models by `scripts/docs/generate.py`. Configs are frozen: "
        "`load_config(ArcConfig, preset, overrides)` makes one, an unknown key or a bad value is refused in "
        "words. On the command line and in overrides a setting is named with dots, as in "
        "`ppo.num_updates=200`; a type that links to another model is a section."
    )
    yield from _preset_lines()
    shown = ""
    for group, module, model in models():
        if group != shown:
            yield from ("", f"## {group}")
            shown = group
        yield from ("", f"### {model.__name__}", "", f"`{module}`. {_paragraph(model.__doc__ or '')}", "")
        yield from _table(model, known)
        if issubclass(model, Config) and model.removed_settings:
            gone = ", ".join(f"`{name}`" for name in model.removed_settings)
            yield from ("", f"Settings of older files that are refused with the reason: {gone}.")


def _preset_lines() -> Iterator[str]:
    yield from ("", "## Presets", "")
    yield (
        "A preset lists what differs from the defaults. `phalanx train arc --preset single` and "
        '`load_config(ArcConfig, "mini")` take one by name; a path takes a file of your own.'
    )
    yield from ("", "| group | preset | what it is |", "| --- | --- | --- |")
    for path in sorted(PRESET_FOLDER.rglob("*.yaml")):
        group = path.parent.relative_to(PRESET_FOLDER).as_posix()
        yield f"| `{group}` | `{path.stem}` | {_escaped(_head_comment(path.read_text(encoding='utf-8')))} |"


def _head_comment(text: str) -> str:
    """The comment at the top of a preset, without Hydra's header."""
    words = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:
            words.append(line.lstrip("# ").strip())
    return " ".join(words)


def _table(model: type[BaseModel], known: set[type[BaseModel]]) -> Iterator[str]:
    yield "| setting | type | default | bounds | |"
    yield "| --- | --- | --- | --- | --- |"
    for name, field in model.model_fields.items():
        kind, section = _type(field.annotation, known), _section(field.annotation)
        default = _default(field, section)
        cells = (f"`{name}`", kind, default, _bounds(field), _escaped(_paragraph(field.description or "")))
        yield f"| {' | '.join(cells)} |"


def _section(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _type(annotation: Any, known: set[type[BaseModel]]) -> str:
    section = _section(annotation)
    if section in known:
        return f"[{section.__name__}](#{section.__name__.lower()})"
    # Inside a table a bar in code is shown with its backslash by some readers, and ends the cell for others.
    return " or ".join(f"`{name}`" for name in _type_names(annotation))


def _type_names(annotation: Any) -> list[str]:
    """The choices of a type, each by its name or value."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_names(arguments[0])
    if origin is Literal:
        return [repr(argument) for argument in arguments]
    if origin in (Union, types.UnionType):
        return [name for argument in arguments for name in _type_names(argument)]
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return [repr(member.value) for member in annotation]
    if annotation in (None, type(None)):
        return ["None"]
    if annotation is Ellipsis:
        return ["..."]
    if origin is not None:
        inner = (" or ".join(_type_names(argument)) for argument in arguments)
        return [f"{origin.__name__}[{', '.join(inner)}]"]
    return [annotation.__name__ if isinstance(annotation, type) else str(annotation)]


def _default(field: FieldInfo, section: type[BaseModel] | None) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if section is None:
        return f"`{_value(value)}`"
    # A section's default may differ from its model's own; only that is worth saying.
    changed = [
        f"`{name}={_value(getattr(value, name))}`"
        for name, inner in section.model_fields.items()
        if inner.is_required() or getattr(value, name) != inner.get_default(call_default_factory=True)
    ]
    return f"its own, but {', '.join(changed)}" if changed else "its own"


def _value(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return repr(value.value)
    if isinstance(value, tuple):
        inner = ", ".join(map(_value, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def _bounds(field: FieldInfo) -> str:
    found = []
    for mark in field.metadata:
        for attribute, sign in _BOUNDS:
            bound = getattr(mark, attribute, None)
            if bound is not None:
                found.append(f"{sign} {_power(bound)}")
    return ", ".join(found)


def _power(bound: Any) -> str:
    """2147483648 reads 2^31^; other numbers as they are."""
    if isinstance(bound, int) and bound >= 2**20 and bound & (bound - 1) == 0:
        return f"2<sup>{bound.bit_length() - 1}</sup>"
    return f"{bound:,}" if isinstance(bound, int) else str(bound)


def _paragraph(text: str) -> str:
    """The first paragraph, on one line."""
    return " ".join(text.strip().split("\n\n")[0].split())


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
