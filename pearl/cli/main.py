"""The root of the command line, and its one error boundary.

Standard output carries the result alone, everything else goes to standard error.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence

import click

from pearl.cli.lazy import Entry, LazyGroup
from pearl.errors import InputError, PearlError

EXIT_INTERNAL = 70
"""EX_SOFTWARE of sysexits.h."""
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as a shell reports it."""
EXIT_CODES = {
    0: "done, planned, or keep",
    1: "a check that was asked for does not hold, or a controller cannot run",
    2: "bad input",
    3: "infeasible",
    4: "no answer within the limit",
    5: "no controller can be reached",
    EXIT_INTERNAL: "a fault of PEARL's own",
    EXIT_INTERRUPTED: "interrupted",
}
"""All of them, over all commands."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What a disk, or the file behind standard output, is at fault for."""
GC_THRESHOLD = 50_000
"""Allocations between two collections: at Python's 700 a cold start spends a tenth of its time looking for garbage."""

COMMANDS = {
    "solve": Entry(
        module="pearl.cli.solve", attribute="solve", help="Decide on a scenario, explain the decision, and plan it."
    ),
    "compare": Entry(
        module="pearl.cli.compare", attribute="compare", help="Compare solvers and predictors on scenarios."
    ),
    "simulate": Entry(
        module="pearl.cli.simulate",
        attribute="simulate",
        help="See what policies would have done in a simulated world.",
    ),
    "serve": Entry(module="pearl.cli.serve", attribute="serve", help="Serve rollout on live workers, by a policy."),
    "status": Entry(module="pearl.cli.status", attribute="status", help="Show what a running cluster is doing."),
    "events": Entry(module="pearl.cli.events", attribute="events", help="Show what happened to a running cluster."),
    "explain": Entry(module="pearl.cli.explain", attribute="explain", help="Show why a decision was taken."),
    "drain": Entry(module="pearl.cli.drain", attribute="drain", help="Take a worker out of service."),
    "stop": Entry(module="pearl.cli.stop", attribute="stop", help="End a running controller."),
    "replay": Entry(
        module="pearl.cli.replay", attribute="replay", help="See what a policy would have decided on telemetry."
    ),
    "fit": Entry(module="pearl.cli.fit", attribute="fit", help="Fit workload and engine profiles to telemetry."),
    "reproduce": Entry(
        module="pearl.cli.reproduce",
        attribute="reproduce",
        help="Show every figure of the paper beside the simulated one.",
    ),
    "calibrate": Entry(
        module="pearl.cli.calibrate", attribute="calibrate", help="Fit numbers of a scenario to given figures."
    ),
    "policy": Entry(module="pearl.cli.policy", attribute="policy", help="Check, show and explain policies."),
    "profile": Entry(module="pearl.cli.profile", attribute="profile", help="Fit, list and show engine profiles."),
    "solvers": Entry(module="pearl.cli.solvers", attribute="solvers", help="List the solvers and what they can do."),
    "trace": Entry(module="pearl.cli.trace", attribute="trace", help="Read, convert and generate traces."),
}


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"pearl {version('pearl')}")
    except PackageNotFoundError:
        click.echo("pearl (not installed: run from its source tree)")
    ctx.exit()


_HELP = f"""PEARL chooses how rollout workers serve prefill and decode, and plans the change with the fewest steps.

Exit codes: {"; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())}.
"""


@click.group(cls=LazyGroup, entries=COMMANDS, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def root() -> None:
    """The `pearl` command, of which every other is a part."""


def main() -> None:
    """Entry point of the `pearl` command."""
    gc.set_threshold(GC_THRESHOLD)
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run a command line; returns the exit code. Every error ends here, as lines that start with `error:`."""
    try:
        result = root.main(args=list(args), prog_name="pearl", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as e:
        e.show()
        return e.exit_code
    except click.ClickException as e:
        _say(f"{e.format_message()}{_usage_hint(e)}")
        return e.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return EXIT_INTERRUPTED
    except PearlError as e:
        for fault in e.faults if isinstance(e, InputError) else (e,):
            _say(str(fault))
        return e.exit_code
    except OSError as e:
        if e.errno not in FULL:
            return _internal(e)
        _say(f"cannot write: {e.strerror}")
        return PearlError.exit_code
    except Exception as e:
        return _internal(e)
    return result if isinstance(result, int) else 0


def _say(text: str) -> None:
    click.echo(f"error: {text}", err=True)


def _usage_hint(error: click.ClickException) -> str:
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else None
    return f" (see `{command} --help`)" if command else ""


def _internal(error: Exception) -> int:
    if os.environ.get("PEARL_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    else:
        words = " ".join(str(error).split())
        _say(f"a fault of PEARL's own, {type(error).__name__}: {words} (set PEARL_DEBUG=1 to see the traceback)")
    return EXIT_INTERNAL
