"""Command line: `mjx-lite demo | bench | check | inspect | view`, also `python -m mjx_lite`.

Each command is a module with `add_arguments(parser)` and `run(args) -> exit code`. `main` imports only the module of the
requested command, so that `--help` answers at once.
"""

import argparse
import importlib
import importlib.metadata
import sys
from collections.abc import Sequence
from typing import Any

# help line of each command, in the order of the help text
COMMANDS = {
  "demo": "many humanoids fall and flail under random control; a report and a picture",
  "bench": "steps per second and compile time of a model",
  "check": "every stage against MuJoCo C along a trajectory",
  "inspect": "sizes, slots, memory, stage times, and what is unsupported in a model",
  "view": "MuJoCo's viewer, in which mjx_lite moves the world and the mouse pushes it",
}


class _Version(argparse.Action):
  """Action that prints versions and exits."""

  def __call__(self, parser, *_):
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mjx_lite", "mujoco", "jax")))
    parser.exit(0)


def _module(command: str) -> Any:
  """Import the module of a command."""
  return importlib.import_module(f"mjx_lite.cli.{command}")


def main(argv: Sequence[str] | None = None) -> int:
  """Run one command.

  Args:
    argv: the arguments after the program's name; by default the arguments of this process

  Returns:
    The exit code: 0 good, 1 a difference was found, 2 bad input.
  """
  argv = list(sys.argv[1:] if argv is None else argv)
  parser = argparse.ArgumentParser(prog="mjx-lite", description="MuJoCo's runtime in JAX: its tools.")
  parser.add_argument("--version", action=_Version, nargs=0, help="this package's version, MuJoCo's and JAX's")
  subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
  requested = next((word for word in argv if not word.startswith("-")), None)
  for name, text in COMMANDS.items():
    subparser = subparsers.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    if name == requested:
      _module(name).add_arguments(subparser)
  args, unknown = parser.parse_known_args(argv)
  if unknown:  # report with the usage of the command
    subparsers.choices[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")

  from mjx_lite.cli import common

  try:
    return _module(args.command).run(args)
  except (common.BadInput, *common.ENGINE_ERRORS) as error:
    message = str(error)
  except common.MEMORY_ERRORS as error:
    if not common.out_of_memory(error):
      raise
    message = f"there is not enough memory on this machine; use fewer --worlds or --steps: {common.one_line(error)}"
  except KeyboardInterrupt:
    common.stderr.print("stopped")
    return 130
  common.stderr.print(common.headed(f"mjx-lite {args.command}: ", "bold red", message), soft_wrap=True)
  return 2
