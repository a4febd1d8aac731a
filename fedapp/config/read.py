"""Settings as a command line has them: KEY=VALUE words, texts of them, and TOML files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from fedapp.config.run_config import Scalar, defaults
from fedapp.errors import ConfigError

QUOTED = r"""'[^']*'|"[^"]*\""""
WORD = re.compile(rf"[^\s=]+=(?:{QUOTED}|\[(?:{QUOTED}|[^\]])*\])(?!\S)|\S+")


def in_words(run_config: list[str] | None, settings: list[str] | None) -> list[str]:
    """Return the settings of ``--run-config`` texts, one a word, and then ``settings``.

    Spaces do not end a word inside of quotes or brackets: ``"seed=[0, 1] dataset='my data'"`` has two.
    The name of a TOML file may have spaces, too.
    """
    words = list[str]()
    for text in run_config or []:
        whole = text.strip()
        is_file = "=" not in whole and whole.endswith(".toml")
        words += [whole] if is_file else WORD.findall(whole)
    return words + (settings or [])


def parse_settings(settings: list[str] | None) -> dict[str, Scalar]:
    """Return KEY=VALUE arguments, and TOML files, as run-config values.

    A value is TOML (0.1, true, "text"); a bare word is text.

    Raises
    ------
    ConfigError
        An argument is neither KEY=VALUE nor a TOML file.
    """
    values: dict[str, Scalar] = {}
    standard = defaults()
    for setting in settings or []:
        key, separator, text = setting.partition("=")
        if separator:
            values[key.strip()] = _value(text.strip(), standard.get(key.strip()))
        elif setting.endswith(".toml"):
            values |= _flat(_read_toml(Path(setting)))
        else:
            raise ConfigError(
                f"{setting!r}: must be KEY=VALUE, as in learning-rate=0.1, or a .toml file."
            )
    return values


def _value(text: str, default: Scalar | None) -> Scalar:
    """Return a TOML value, or the text itself; Python's True and False mean what they say.

    Where text is the default, a number is text, too: a folder called 1.10 is not 1.1.
    """
    if text in ("True", "False"):
        return text == "True"
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    if not isinstance(value, bool | int | float | str):
        return text
    return text if isinstance(default, str) and not isinstance(value, bool | str) else value


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Scalar]:
    flat: dict[str, Scalar] = {}
    for key, value in values.items():
        flat |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat
