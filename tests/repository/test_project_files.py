"""Workflows, templates and project pages agree with the code: commands, targets, versions and links exist."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import phalanx

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def commands(workflow: Path) -> list[str]:
    return [
        line.strip()
        for job in load(workflow)["jobs"].values()
        for step in job["steps"]
        for line in step.get("run", "").splitlines()
    ]


def check_command(command: str) -> None:
    """Fail if a command is neither a script of this repository, a target of the Makefile nor a known tool."""
    program, *arguments = command.split()
    if program == "make":
        assert arguments[0] in TARGETS, command
    elif program.startswith(".ci/"):
        assert os.access(ROOT / program, os.X_OK), command
        script = (ROOT / program).read_text(encoding="utf-8")
        for option in (argument for argument in arguments if argument.startswith("--")):
            assert f"{option})" in script, command
    else:
        assert command == "pipx run build --sdist", command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_scripts_and_targets_that_exist(path: Path) -> None:
    workflow = load(path)
    assert {"name", True, "permissions", "jobs"} <= set(workflow), "YAML reads the key `on` as true"
    for job in workflow["jobs"].values():
        assert "runs-on" in job and job["steps"]
        assert set(job.get("needs", [])) <= set(workflow["jobs"]) or job["needs"] in workflow["jobs"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert "@" in step.get("uses", "@"), step
    for command in commands(path):
        check_command(command)


def test_three_workflows_cover_the_supported_versions() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "tests", "wheels"]
    jobs = load(ROOT / ".github/workflows/tests.yml")["jobs"]
    matrix = jobs["versions"]["strategy"]["matrix"]
    classifiers = [re.fullmatch(r".*:: (3\.\d+)", text) for text in PYPROJECT["project"]["classifiers"]]
    versions = [match[1] for match in classifiers if match]
    assert matrix["python"] == versions == ["3.11", "3.12", "3.13"]
    [jax] = [
        entry for entry in PYPROJECT["project"]["optional-dependencies"]["jax"] if entry.startswith("jax>")
    ]
    assert matrix["jax"] == [f"{jax.removeprefix('jax>=')}.*", "newest"]
    builds = PYPROJECT["tool"]["cibuildwheel"]["build"]
    assert builds == [f"cp{version.replace('.', '')}-*" for version in versions]


def test_continuous_integration_runs_scripts_and_targets_that_exist() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    found = re.findall(r'make [a-z-]+|(?<=[ "\n])\.ci/[a-z-]+(?: --[a-z]+)?', script)
    assert {"make test", "make wheel-check", ".ci/check-newest --smoke", ".ci/sanitize"} <= set(found)
    for command in found:
        check_command(command)


@pytest.mark.parametrize("path", sorted((ROOT / ".ci").iterdir()), ids=lambda path: path.name)
def test_scripts_are_valid_bash(path: Path) -> None:
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_issue_templates_have_unique_required_fields() -> None:
    folder = ROOT / ".github/ISSUE_TEMPLATE"
    assert load(folder / "config.yml") == {"blank_issues_enabled": True}
    for name in ("bug_report.yml", "feature_request.yml"):
        form = load(folder / name)
        assert {"name", "description", "body"} <= set(form)
        fields = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(fields) == len(set(fields)) >= 3
        assert all(field["attributes"] for field in form["body"])


def test_pre_commit_hooks_run_development_tools() -> None:
    tools = {re.split(r"[>=\[]", entry)[0] for entry in PYPROJECT["project"]["optional-dependencies"]["dev"]}
    hooks = [hook for repo in load(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert len(hooks) == 3
    for hook in hooks:
        program = hook["entry"].split()[0]
        assert program.startswith(".venv/bin/") and Path(program).name in tools, hook


def test_all_pages_have_the_version_of_the_package() -> None:
    version = PYPROJECT["project"]["version"]
    citation = load(ROOT / "CITATION.cff")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = re.findall(r"^## \[(.*)\]", changelog, re.MULTILINE)
    assert phalanx.__version__ == citation["version"] == version
    assert entries[0] in ("Unreleased", version)
    assert citation["license"] == PYPROJECT["project"]["license"]


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_in_project_pages_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]*)#?[^)]*\)", text):
        assert not target or (ROOT / target).exists(), target
    for path in re.findall(r"`((?:src|tests|docs|examples|scripts|\.ci)/[\w./-]+)`", text):
        if "NAME" not in path:
            assert (ROOT / path).exists(), path
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert target in TARGETS, target
