"""One body for every adapter: what each agent is told, and what is kept from it."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ftagent import adapters
from ftagent.adapters.base import Adapter, Launch, Order, Target, reply_tokens

ADAPTERS = [adapters.get(name) for name in adapters.names()]
each_adapter = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
each_agent = pytest.mark.parametrize(
    "adapter", [adapter for adapter in ADAPTERS if adapter.executable], ids=lambda adapter: adapter.name
)
TARGET = Target("http://127.0.0.1:5", "t0ken-of-the-run", "some/model", 54321)


@pytest.fixture
def order(tmp_path: Path) -> Order:
    directory = tmp_path / "state"
    directory.mkdir()
    project = tmp_path / "project"
    project.mkdir()
    arguments = ("--flag", "{task}")  # the mark is one of `custom` alone
    return Order(("/bin/agent",), TARGET, directory, project, "do it", unattended=True, arguments=arguments)


def files(directory: Path) -> dict[Path, str]:
    return {path: path.read_text("utf-8") for path in directory.rglob("*") if path.is_file()}


def all_told(launch: Launch, directory: Path) -> str:
    """Everything an agent is told, wherever it stands; quotation marks inside JSON inside JSON left out."""
    told = [*launch.arguments, *launch.environment.values(), *files(directory).values()]
    return "\n".join(told).replace("\\", "")


@each_adapter
def test_it_is_told_where_the_engine_is_and_how_much_it_holds(adapter: Adapter, order: Order) -> None:
    told = all_told(adapter.prepare(order), order.directory)
    assert "http://127.0.0.1:5" in told
    assert "some/model" in told
    numbers = set(map(int, re.findall(r"\d+", told)))
    assert TARGET.context in numbers
    reply = reply_tokens(TARGET)
    assert {reply, TARGET.context - reply} & numbers, (
        "how long a reply may be, or when to make the prompt short"
    )


@each_adapter
def test_the_token_stands_in_no_argument_and_in_no_file_that_stays(adapter: Adapter, order: Order) -> None:
    launch = adapter.prepare(order)
    assert not any(TARGET.token in argument for argument in launch.arguments)
    holding = [path for path, text in files(order.directory).items() if TARGET.token in text]
    assert set(holding) <= set(launch.scratch)
    assert TARGET.token in launch.environment.values()
    secret = [path for path in holding if path.stat().st_mode & 0o077]
    assert secret == []


@each_adapter
def test_what_steers_it_from_outside_never_gets_through(adapter: Adapter, order: Order) -> None:
    """Each variable that the adapter sets is one that a user's environment cannot set."""
    ours = adapter.prepare(order).environment
    steering = [name for name in ours if name in adapter.homes or "_API_" in name or name.endswith("_URL")]
    assert all(name.startswith(adapter.owned) or name in adapter.homes for name in steering)
    tokens = [name for name, value in ours.items() if value == TARGET.token]
    assert all(name.startswith(adapter.owned) for name in tokens)


@each_agent
def test_all_its_state_is_in_the_directory_of_the_run(adapter: Adapter, order: Order) -> None:
    environment = adapter.prepare(order).environment
    assert adapter.homes
    for name in adapter.homes:
        assert Path(environment[name]).is_relative_to(order.directory), name


@each_adapter
@pytest.mark.parametrize("task", ["do it", None])
@pytest.mark.parametrize("lean", [False, True])
def test_nothing_is_written_elsewhere(
    adapter: Adapter, order: Order, task: str | None, lean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = order.project.parent / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(order.project)
    adapter.prepare(replace(order, task=task, lean=lean, arguments=("{task}",) if task else ()))
    assert list(home.iterdir()) == list(order.project.iterdir()) == []


@each_agent
def test_it_skips_permissions_only_where_it_works_unattended(adapter: Adapter, order: Order) -> None:
    def told(change: Order) -> tuple[tuple[str, ...], dict[str, str]]:
        launch = adapter.prepare(change)
        kept = {name: launch.environment.get(name, "") for name in sorted(launch.environment)}
        written = {path.name: text for path, text in files(order.directory).items()}
        return launch.arguments, kept | written

    order = replace(order, arguments=())
    free = told(order)
    assert free != told(replace(order, unattended=False))
    interactive = told(replace(order, task=None, unattended=False))
    skipping = re.compile(r"dangerously|yolo|bypassPermissions", re.IGNORECASE)
    assert not any(skipping.search(argument) for argument in interactive[0])
    assert '"*": "allow"' not in interactive[1].get("OPENCODE_CONFIG_CONTENT", "")


@each_agent
def test_what_the_user_adds_reaches_it_and_the_task_stays_one_word(adapter: Adapter, order: Order) -> None:
    order = replace(order, arguments=("--resume", "x y"), task='say "hi", then\nleave')
    for change in (order, replace(order, task=None)):
        arguments = adapter.prepare(change).arguments
        assert arguments[0] == "/bin/agent"
        at = arguments.index("--resume")
        assert arguments[at + 1] == "x y"
    assert order.task in adapter.prepare(order).arguments


@each_agent
def test_a_task_that_looks_like_a_flag_is_none(adapter: Adapter, order: Order) -> None:
    arguments = adapter.prepare(replace(order, task="--help", arguments=())).arguments
    if "--help" in arguments:
        assert arguments[arguments.index("--help") - 1] == "--"
    else:
        assert " --help" in arguments


@each_agent
def test_events_are_asked_for_only_with_json(adapter: Adapter, order: Order) -> None:
    plain = adapter.prepare(order).arguments
    more = [word for word in adapter.prepare(replace(order, events=True)).arguments if word not in plain]
    assert [word for word in more if "json" in word]


@each_adapter
def test_two_runs_in_one_project_are_told_the_same_but_for_the_engine(adapter: Adapter, order: Order) -> None:
    """Prompts contain paths and settings, so these must not change from run to run."""
    other = replace(order, target=replace(TARGET, url="http://127.0.0.1:6", token="another"))

    def same(launch: Launch) -> str:
        text = json.dumps([launch.arguments, dict(launch.environment)])
        return text.replace(":6", ":5").replace("another", TARGET.token).replace(str(os.getpid()), "PID")

    assert same(adapter.prepare(order)) == same(adapter.prepare(other))


@each_adapter
def test_volatile_spans_are_patterns(adapter: Adapter) -> None:
    for span in adapter.volatile:
        re.compile(span.pattern, re.MULTILINE)
        assert span.where
        assert span.remedy


@each_agent
def test_the_version_that_is_installed_is_one_that_is_accepted(adapter: Adapter) -> None:
    """What is pinned is what was measured."""
    assert adapter.install.endswith("@" + ".".join(map(str, adapter.minimum)))
