from __future__ import annotations

import re
from pathlib import Path

import pytest

from ftagent import adapters
from ftagent.adapters.claude_code import ADAPTER
from tests.support.cli_reference import reference

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").glob("*.md")]


def test_the_command_reference_is_what_the_commands_say() -> None:
    written = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written.split() == reference().split(), "run `python -m tests.support.cli_reference > docs/cli.md`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert broken == []


def test_the_readme_names_the_version_of_the_agent_that_is_asked_for() -> None:
    assert ADAPTER.install in (REPOSITORY / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", adapters.names())
def test_the_page_of_agents_has_every_agent_and_how_to_install_it(name: str) -> None:
    page = (REPOSITORY / "docs" / "agents.md").read_text(encoding="utf-8")
    adapter = adapters.get(name)
    assert f"`{name}" in page
    assert adapter.setting == "" or adapter.install in page
    assert all(home.split("_")[0] in page for home in adapter.homes)
