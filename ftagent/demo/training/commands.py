"""Random shell commands with what they print. Outputs are random, so they must be read, not guessed."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

from ftagent.demo.training.files import listing
from ftagent.demo.training.values import FOLDERS, file_name, phrase, stem, token, word
from ftagent.demo.training.ways import ways


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command and what it printed."""

    line: str
    output: str
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class _Scene:
    """What the commands of one draw are about."""

    name: str
    text: str
    number: int
    version: str
    several: str


def _scene(rng: random.Random) -> _Scene:
    name, text, number = file_name(rng), phrase(rng), rng.randint(2, 999)
    version = f"{rng.randint(0, 24)}.{rng.randint(0, 30)}.{rng.randint(0, 20)}"
    lines = (rng.choice((phrase, token, file_name, word))(rng) for _ in range(rng.randint(2, 6)))
    return _Scene(name, text, number, version, "\n".join(lines))


def _listing(rng: random.Random, _: _Scene) -> Command:
    line = rng.choice(("ls", "ls -1", "ls -a", f"ls {rng.choice(FOLDERS)}", "git ls-files"))
    return Command(line, "\n".join(listing(rng)))


def _version(rng: random.Random, scene: _Scene) -> Command:
    programs = "node --version | node -v | npm --version | gcc -dumpversion | make --version | git --version"
    line = rng.choice(ways(programs))
    return Command(line, rng.choice(("v", "", "git version ", "GNU Make ")) + scene.version)


def _date(rng: random.Random, _: _Scene) -> Command:
    line = rng.choice(("date", "date +%Y", "date -u", "date +%F", "uptime"))
    day = f"20{rng.randint(20, 40)}-0{rng.randint(1, 9)}-{rng.randint(10, 28)}"
    return Command(line, rng.choice((day, str(rng.randint(1990, 2050)))))


def _machine(rng: random.Random, scene: _Scene) -> Command:
    line = rng.choice(("uname", "uname -s", "uname -r", "uname -m", "arch", "nproc"))
    return Command(line, rng.choice(("Linux", "x86_64", scene.version, str(scene.number))))


def _sum(rng: random.Random, scene: _Scene) -> Command:
    terms = f"{rng.randint(1, 99)} {rng.choice('+-*')} {rng.randint(1, 99)}"
    return Command(f"python3 -c 'print({terms})'", str(scene.number))


def _product(rng: random.Random, scene: _Scene) -> Command:
    factors = f"{rng.randint(1, 999)} * {rng.randint(1, 999)}"
    return Command(f'python3 -c "print({factors})"', str(scene.number * 37))


def _silent(rng: random.Random, scene: _Scene) -> Command:
    name = scene.name
    lines = (
        f"mkdir {stem(rng)}",
        f"mkdir -p {word(rng)}/{stem(rng)}",
        f"touch {name}",
        f"rm {name}",
        f"cp {name} {file_name(rng)}",
        f"mv {name} {file_name(rng)}",
        f"chmod +x {name}",
    )
    return Command(rng.choice(lines), "")


def _git(rng: random.Random, scene: _Scene) -> Command:
    lines = ways("git status | git status --short | git log --oneline | git branch | git diff --stat")
    return Command(rng.choice(lines), scene.several)


def _part_of_file(rng: random.Random, scene: _Scene) -> Command:
    lines = ways("head -n {n} {f} | tail -n 3 {f} | sort {f} | uniq {f}")
    return Command(rng.choice(lines).format(n=scene.number % 9 + 1, f=scene.name), scene.several)


def _script(rng: random.Random, scene: _Scene) -> Command:
    lines = ways("make | make test | pytest {f} | npm test | python3 {f} | bash {f} | ./{f} | sh {f}")
    line = rng.choice(lines).format(f=scene.name)
    return Command(line, rng.choice((scene.several, f"{scene.number} passed", scene.text)))


def _state(rng: random.Random, scene: _Scene) -> Command:
    lines = ways("df -h | free -m | env | ps | id | du -sh {f} | stat {f} | md5sum {f} | file {f}")
    line = rng.choice(lines).format(f=scene.name)
    return Command(line, rng.choice((scene.several, token(rng))))


def _unheard_of(rng: random.Random, scene: _Scene) -> Command:
    line = f"{word(rng)} {word(rng)} -{rng.choice(string.ascii_lowercase)} {scene.name}"
    return Command(line, scene.text)


_KINDS: tuple[Callable[[random.Random, _Scene], Command], ...] = (
    lambda rng, s: Command(f"echo {s.text}", s.text),
    lambda rng, s: Command(f'echo "{s.text}"', s.text),
    lambda rng, s: Command(f"echo '{s.text}'", s.text),
    lambda rng, s: Command(f"cat {s.name}", rng.choice((s.text, s.several))),
    _listing,
    lambda rng, s: Command(rng.choice(("python3 --version", "python --version")), f"Python {s.version}"),
    _version,
    lambda rng, s: Command("pwd", f"/{word(rng)}/{stem(rng)}"),
    _date,
    lambda rng, s: Command("whoami", word(rng)),
    lambda rng, s: Command("hostname", token(rng)),
    _machine,
    lambda rng, s: Command(f"wc -l {s.name}", f"{s.number} {s.name}"),
    lambda rng, s: Command(f"wc -l < {s.name}", str(s.number)),
    lambda rng, s: Command(f"grep -n {word(rng)} {s.name}", f"{s.number}:{s.text}"),
    _sum,
    _product,
    lambda rng, s: Command(f"expr {rng.randint(1, 99)} + {rng.randint(1, 99)}", str(s.number)),
    lambda rng, s: Command(f"seq {rng.choice((3, 4, 5))}", "1\n2\n3\n4"),
    _silent,
    lambda rng, s: Command(f"echo {s.text} > {s.name}", ""),
    lambda rng, s: Command(f"echo '{s.text}' >> {s.name}", ""),
    lambda rng, s: Command(f"printf '{word(rng)}\\n' > {s.name}", ""),
    _git,
    _part_of_file,
    _script,
    _state,
    lambda rng, s: Command(f"{word(rng)} --{word(rng)}", rng.choice((s.text, s.several))),
    _unheard_of,
    lambda rng, s: Command(f"cat {s.name}", f"cat: {s.name}: No such file or directory", 1),
    lambda rng, s: Command(word(rng), f"bash: {word(rng)}: command not found", 127),
)


def command(rng: random.Random) -> Command:
    """A shell command with a plausible output and its exit code."""
    scene = _scene(rng)
    return rng.choice(_KINDS)(rng, scene)
