"""Every shell command of the documents is run as it stands, or parsed and marked with why it is not run."""

import shutil
import sys
from pathlib import Path

import pytest

from phalanx.cli import app as cli
from tests.helpers.markdown import NOT_RUN, ROOT, Shell, check, commands, spans, unknown_flags

COMMANDS = list(commands())
RUN = [one for one in COMMANDS if not one.reason]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.where)
def test_a_documented_command_parses(command: Shell) -> None:
    check(command.words)


def test_flags_within_sentences_exist() -> None:
    found = list(spans())
    assert len(found) > 50
    assert [(page, words, bad) for page, words in found if (bad := unknown_flags(words))] == []


def test_every_reason_is_needed_and_most_kinds_of_command_are_run() -> None:
    assert {one.words[0] for one in RUN} == {"phalanx"}
    given = {one.reason for one in COMMANDS}
    assert [why for why in NOT_RUN.values() if why not in given] == []
    assert len(RUN) > 20, [one.text for one in RUN]


@pytest.mark.parametrize(
    "wrong",
    [
        "phalanx train ppo --env arc --sedes 3",
        "phalanx train ppo --env arc num_update=3",
        "phalanx train ppo --config grande",
        "phalanx sweep ppo --env arc optimizer.learning_rat=1,2 --out x",
        "phalanx trian ppo --env arc",
        "python benchmarks/proofs.py --dataa x",
        "make demoo",
        'pip install "phalanx[plays]"',
    ],
)
def test_a_misspelled_command_would_be_noticed(wrong: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        check(Shell("here", wrong).words)


def test_a_misspelled_flag_within_a_sentence_would_be_noticed() -> None:
    assert unknown_flags(["phalanx", "kg", "show", "--paths", "x"]) == ["--paths"]
    assert unknown_flags(["phalanx", "dta"]) == ["dta"]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it: the repository, a small trained run by the documents' names, some text."""
    from phalanx.training import PPO, train
    from tests.helpers.small_training import small_config

    folder = tmp_path_factory.mktemp("clone")
    for name in ("examples", "benchmarks", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    config = small_config("num_updates=1", "logging.sample_frequency=0")
    train(PPO(config), folder / "runs" / "mine")
    for name in ("bc", "demo", "other"):
        shutil.copytree(folder / "runs" / "mine", folder / "runs" / name)
    lines = "".join(f'{{"id": "s{i}", "text": "{"word " * (1 + i % 40)}"}}\n' for i in range(200))
    (folder / "train.jsonl").write_text(lines)
    if (family := ROOT.parent / "shared/data/kg/family").is_dir():
        (folder / "data/kg").mkdir(parents=True)
        (folder / "data/kg/family").symlink_to(family)
    return folder


@pytest.mark.slow
def test_the_documented_commands_run(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the order of the documents, all in one folder, and each once."""
    monkeypatch.chdir(clone)
    monkeypatch.setenv("HOME", str(clone))
    monkeypatch.delenv("PHALANX_KG", raising=False)
    failed, done = [], set()
    for one in RUN:
        words = [word.replace("~", str(clone), word.startswith("~/")) for word in one.words]
        if " ".join(words) in done or ("data/kg" in one.text and not Path("data").exists()):
            continue
        done.add(" ".join(words))
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as left:
            cli.main()
        if left.value.code:
            failed.append(f"{one.where}: {one.text}\n{''.join(capfd.readouterr())[-600:]}")
    assert not failed, "\n".join(failed)
