"""Turns an environment and a command line into typed values by a table of options.

A flag wins over its environment name; an empty environment value counts as unset. Every wrong value raises
`StartError` with the key, the value and what is allowed; the value of a secret is never shown.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from common.errors import StartError

BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def _boolean(text: str) -> bool:
    return BOOLEANS[text.lower()]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(part) for part in text.split(",")}))


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


CONVERTERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (_boolean, "true or false"),
    "tuple[int, ...]": (_numbers, "whole numbers separated by commas"),
    "tuple[str, ...]": (_words, "words separated by commas"),
}
"""Type annotation of a setting → how its text is read, what is allowed."""


@dataclass(frozen=True)
class Option:
    """One setting: its names, its type and what is allowed. `envs` and `flags` list the current name first."""

    name: str
    kind: str
    help: str
    envs: tuple[str, ...]
    flags: tuple[str, ...]
    default: Any = None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    own: bool = False

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        low = "" if self.least is None else f" of at least {self.least:g}"
        high = "" if self.most is None else f" and at most {self.most:g}"
        return CONVERTERS[self.kind][1] + low + high

    def convert(self, key: str, text: str) -> Any:
        """The typed value of `text`; raises `StartError`."""
        try:
            value = CONVERTERS[self.kind][0](text.strip())
        except (ValueError, KeyError):
            self.refuse(key, text)
        parts = value if isinstance(value, tuple) else (value,)
        if not parts or not all(map(self._accepts, parts)):
            self.refuse(key, text)
        return value

    def _accepts(self, value: Any) -> bool:
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return math.isfinite(value) and (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def refuse(self, key: str, text: object, allowed: str = "") -> NoReturn:
        """Stops the start."""
        shown = key if self.secret else f"{key}={text}"
        raise StartError(f"Invalid argument: {shown}, allowed is {allowed or self.allowed}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartError(f"Invalid argument: {message}")


def parser(options: Iterable[Option], program: str, version: str) -> argparse.ArgumentParser:
    """The command line of all options; `--help` and `--version` end the process with status 0."""
    command = _Parser(prog=program, usage=f"{program} [options]", allow_abbrev=False)
    command.add_argument("-V", "--version", action="version", version=f"tokenfarm {version}")
    groups = {False: command.add_argument_group("as in Text Generation Inference"), True: command.add_argument_group("of the farm")}
    for option in options:
        if not option.flags:
            continue
        env = f" [env: {option.envs[0]}]" if option.envs else ""
        default = "" if option.default in (None, "", (), False) else f" [default: {option.default}]"
        extra: dict[str, Any] = {"nargs": "?", "const": "true"} if option.kind == "bool" else {}
        if option.kind == "tuple[str, ...]":
            extra = {"action": "append"}
        for index, flag in enumerate(option.flags):
            text = argparse.SUPPRESS if index else (option.help + env + default).replace("%", "%%")
            short = {"--port": ["-p"], "--graceful-termination-timeout": ["-g"], "--env": ["-e"]}.get(flag, [])
            groups[option.own].add_argument(*short, flag, dest=flag, default=argparse.SUPPRESS, metavar="VALUE", help=text, **extra)
    return command


def read(
    options: Iterable[Option], command: argparse.ArgumentParser, env: Mapping[str, str], argv: Sequence[str]
) -> dict[str, tuple[str, Any]]:
    """Option name → (the key it was given by, typed value), for the options that were given."""
    known, unknown = command.parse_known_args(list(argv))
    if unknown:
        raise StartError(f"Invalid argument: {unknown[0].split('=')[0]} is unknown, see --help")
    flags = {flag: ",".join(value) if isinstance(value, list) else str(value) for flag, value in vars(known).items()}
    given = {}
    for option in options:
        found = {flag: flags[flag] for flag in option.flags if flag in flags} or _from_env(option, env)
        values = {key: option.convert(key, text) for key, text in found.items()}
        if len(set(values.values())) > 1:
            raise StartError(f"Invalid argument: {' and '.join(values)} contradict each other, give one of them")
        if values:
            given[option.name] = next(iter(values.items()))
    return given


def _from_env(option: Option, env: Mapping[str, str]) -> dict[str, str]:
    found = {key: env[key] for key in option.envs if env.get(key, "").strip() and not _is_service_link(key, env[key])}
    if option.secret:
        for key in option.envs:
            if (path := env.get(f"{key}_FILE")) and (content := _content(f"{key}_FILE", path)):
                found[f"{key}_FILE"] = content
    return found


def _is_service_link(key: str, value: str) -> bool:
    """Kubernetes sets `<SERVICE>_PORT=tcp://…` in every pod."""
    return key.endswith("PORT") and re.match(r"\w+://", value) is not None


def _content(key: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"Invalid argument: {key}={path}, allowed is a readable text file ({error.__class__.__name__})") from None
