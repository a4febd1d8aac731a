"""The entry point of the command line ``fedapp``."""

from __future__ import annotations

import io
import shlex
import sys
from typing import Annotated

import click
import typer

import fedapp
from fedapp.cli.model import export, predict
from fedapp.cli.options import SETTINGS_HELP, print_error
from fedapp.cli.results import compare, report, sharpness, status, updates
from fedapp.cli.run import doctor, init, keys, partition, run
from fedapp.cli.studies import reproduce, sweep
from fedapp.config.read import defaults
from fedapp.errors import FedappError

EXTRAS = {"onnx": "onnx", "onnxscript": "onnx"}
"""The extra of ``pyproject.toml`` that installs a package, of packages that only some commands import."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(given: bool) -> None:
    if given:
        typer.echo(f"fedapp {fedapp.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Federated averaging as its two papers describe it."""


app.command(epilog=SETTINGS_HELP)(run)
app.command(epilog=SETTINGS_HELP)(sweep)
app.command(epilog="Experiments: mcmahan-table1 ... seo-fig13, prefixes of names, or all.")(
    reproduce
)
app.command(epilog=SETTINGS_HELP)(partition)
app.command(epilog=SETTINGS_HELP)(doctor)
app.command()(keys)
app.command()(init)
app.command()(status)
app.command()(compare)
app.command()(report)
app.command()(updates)
app.command()(sharpness)
app.command()(predict)
app.command()(export)


def _as_setting(option: str) -> str:
    """Return how to write what was given as an option, if it is a key of the run-config."""
    key = option.lstrip("-").replace("_", "-")
    if key not in defaults():
        return ""
    words = [*sys.argv, "VALUE"]
    given = [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    value = given[0] if given else words[words.index(option) + 1]
    setting = shlex.quote(f"{key}={value}")
    return f" {key} is a setting: write {setting}, without dashes."


def main() -> None:
    """Run the command line; the last line of an error is its reason."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # symbols that its encoding does not have
    try:
        sys.exit(app(standalone_mode=False))
    except click.NoSuchOption as error:
        click.UsageError(error.format_message() + _as_setting(error.option_name), error.ctx).show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()  # typer would draw a box, and its last line would not be the reason
        sys.exit(error.exit_code)
    except FedappError as error:
        print_error(str(error))
        sys.exit(2)
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in EXTRAS:
            raise
        print_error(f"{name} is not installed. Run: pip install 'fedapp[{EXTRAS[name]}]'")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
