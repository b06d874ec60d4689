"""Command line: parse, call the library, hand the result to a reporter, choose an exit code."""

from __future__ import annotations

import gc
import re
import shlex
import sys
from contextlib import nullcontext
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hbdebug import __version__
from hbdebug.errors import HbdebugError, UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from hbdebug.observer import Observer
    from hbdebug.results import SensitivityResult

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Plain help: fast, no box cut at 80 columns, readable in a pipe.
    help="Find which nodes a quantized ONNX model loses accuracy in, and what to change about it.",
)

EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it; what was finished is written all the same."""


class Kind(str, Enum):
    """What ``sensitivity`` ranks."""

    node = "node"
    weight = "weight"
    activation = "activation"


class FidelityName(str, Enum):
    """How what is quantized computes."""

    calibrated = "calibrated"
    integer = "integer"


class Format(str, Enum):
    """What goes to stdout."""

    text = "text"
    json = "json"


ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A *_calibrated_model.onnx file, or a QDQ model.")
]
FloatOption = Annotated[
    Path | None,
    typer.Option("--float", metavar="FLOAT", help="The float model that a QDQ model was made of."),
]
FormatOption = Annotated[Format, typer.Option("--format", help="What to print to stdout.")]
TopOption = Annotated[int, typer.Option("--top", min=1, help="Lines of the ranking to print.")]
SkipUnsupportedOption = Annotated[
    bool,
    typer.Option("--skip-unsupported", help="Leave out unknown operators and attributes."),
]


@app.command()
def sensitivity(
    model: ModelArgument,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="CALIB", help="Samples: CALIB/<input>/* (.npy, images, raw files), or .npz."
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Metric; repeatable, the first ranks. [default: cosine_similarity]"),
    ] = None,
    float_model: FloatOption = None,
    kind: Annotated[Kind, typer.Option(help="What to rank.")] = Kind.node,
    output_node: Annotated[str, typer.Option(help="Measure the damage at this inner node.")] = "",
    quantized: Annotated[
        Path | None,
        typer.Option(help="Measure this *_quantized_model.onnx too, in integers like the chip."),
    ] = None,
    integers: Annotated[
        bool,
        typer.Option("--integers", help="Derive the chip's integers here and measure them too."),
    ] = False,
    node: Annotated[
        list[str] | None, typer.Option(help="Rank only these: a name or wildcard; repeatable.")
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option(help="Rank only this operator type; repeatable.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Use the first N samples. [default: all]")
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]uint8", help="Dtype of an input's raw files; repeatable."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]1x3x48x192", help="Shape of raw files; repeatable."),
    ] = None,
    resize: Annotated[
        str, typer.Option(metavar="HxW", help="Resize images to this, or to 'model'.")
    ] = "",
    color: Annotated[str, typer.Option(help="Color of images: rgb, bgr, gray, yuv444.")] = "",
    layout: Annotated[str, typer.Option(help="Layout of image inputs: nchw, nhwc.")] = "",
    offset: Annotated[
        str, typer.Option(metavar="N,...", help="Added first; -128 for inputs that want it.")
    ] = "",
    mean: Annotated[str, typer.Option(metavar="N,...", help="Subtracted then.")] = "",
    scale: Annotated[str, typer.Option(metavar="N,...", help="Multiplied by then.")] = "",
    split_batch: Annotated[
        bool, typer.Option(help="Split batches that the model would take whole.")
    ] = True,
    split: Annotated[bool, typer.Option(help="Measure weights and activations apart.")] = True,
    suggest: Annotated[bool, typer.Option(help="Search and measure nodes to move.")] = True,
    target: Annotated[
        float, typer.Option(min=0, max=1, help="Cosine that the worst output is to reach.")
    ] = 0.999,
    march: Annotated[
        str, typer.Option(help="bernoulli2 (X3), bayes (J5, Ultra), bayes-e (X5), nash-* (J6).")
    ] = "bayes-e",
    fidelity: Annotated[
        FidelityName,
        typer.Option(help="Rank and suggest as the calibrated model computes, or the chip."),
    ] = FidelityName.calibrated,
    top: TopOption = 20,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the files.")
    ] = Path("hbdebug-out"),
    format: FormatOption = Format.text,  # noqa: A002 - the option's name is the user's word
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap intervals.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Evaluations side by side. [default: cores]")
    ] = None,
    memory: Annotated[
        str, typer.Option(help="Budget for tensors and weights in sessions, such as 512MiB.")
    ] = "1GiB",
    isolate: Annotated[
        bool,
        typer.Option("--isolate", help="Measure in other processes: a crash costs one node."),
    ] = False,
    provider: Annotated[str, typer.Option(help="ONNX Runtime provider.")] = "cpu",
    exact: Annotated[
        bool, typer.Option("--exact", help="No optimization that changes rounding; slower.")
    ] = False,
    fail_below: Annotated[
        float | None,
        typer.Option(help="Exit with 1 if the model as calibrated is worse (ranking metric)."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from what an interrupted run left in DIR.")
    ] = False,
    skip_unsupported: SkipUnsupportedOption = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out samples that cannot be used.")
    ] = False,
) -> None:
    """Rank nodes by the damage each does alone, and suggest which to move."""
    from hbdebug import pipeline
    from hbdebug.recording import JOURNAL
    from hbdebug.samples import parse_preparation

    preparation = parse_preparation(
        dtypes=dtype or (),
        shapes=shape or (),
        resize=resize,
        color=color,
        layout=layout,
        offset=offset,
        mean=mean,
        scale=scale,
        split_batch=split_batch,
    )
    with _observer() as observer:
        result = pipeline.sensitivity(
            model,
            data,
            float_model=float_model,
            metrics=metric or ["cosine_similarity"],
            kind=kind.value,
            output_node=output_node,
            quantized=quantized,
            integers=integers,
            nodes=node or (),
            ops=op or (),
            samples=samples,
            preparation=preparation,
            split=split,
            suggest=suggest,
            target=target,
            march=march,
            fidelity=fidelity.value,
            seed=seed,
            jobs=jobs,
            memory=parse_bytes(memory),
            isolate=isolate,
            provider=provider,
            exact=exact,
            skip_unsupported=skip_unsupported,
            skip_bad=skip_bad,
            journal_folder=output,
            resume=resume,
            observer=observer,
            command=shlex.join(["hbdebug", *sys.argv[1:]]),
        )
    _deliver(result, output, format, top)
    if not result.complete:
        raise typer.Exit(EXIT_INTERRUPTED)
    (output / JOURNAL).unlink(missing_ok=True)
    if fail_below is not None:
        pipeline.check_gate(result, fail_below)


@app.command()
def info(
    model: ModelArgument,
    float_model: FloatOption = None,
    format: FormatOption = Format.text,  # noqa: A002 - the option's name is the user's word
    skip_unsupported: SkipUnsupportedOption = False,
) -> None:
    """List points and nodes, and what would not be analysed and why."""
    from hbdebug import pipeline
    from hbdebug.report.listing import render_listing
    from hbdebug.report.record import dumps_result
    from hbdebug.report.terminal import make_console

    listing = pipeline.info(model, skip_unsupported=skip_unsupported, float_model=float_model)
    if format is Format.json:
        sys.stdout.write(dumps_result(listing))
    else:
        render_listing(listing, console=make_console(sys.stdout))


@app.command()
def run(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A *_quantized_model.onnx or *_calibrated_model.onnx file."
        ),
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="INPUT.npy", help="One file for each input, called like it."),
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE", help="The file of an input; repeatable."),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the outputs.")
    ] = Path("hbdebug-out"),
    all_tensors: Annotated[
        bool, typer.Option("--all-tensors", help="Write every tensor inside the model, too.")
    ] = False,
) -> None:
    """Run a model on one sample: quantized in integers, calibrated fake-quantized."""
    from hbdebug.inference import run_files
    from hbdebug.report.outputs import render_run
    from hbdebug.report.terminal import make_console

    record = run_files(
        model, files or (), named=named or (), folder=output, all_tensors=all_tensors
    )
    render_run(record, console=make_console(sys.stdout))


@app.command()
def repair(
    model: Annotated[Path, typer.Argument(metavar="FLOAT", help="The float model.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="File to write.")],
) -> None:
    """Rewrite HardSigmoid nodes of a float model so that the chip computes the same function."""
    from hbdebug import pipeline

    repaired = pipeline.repair(model, output)
    for item in repaired.repairs:
        way = f"scaled {', '.join(item.scaled)}" if item.scaled else "a Mul in front"
        typer.echo(f"{item.node}: input x {item.factor:g} ({way}), alpha 1/6")
    for name in repaired.left:
        typer.echo(f"{name}: left as it is; its beta is not 0.5, which no factor repairs")
    typer.echo(f"{len(repaired.repairs)} HardSigmoid nodes rewritten; {output}")


@app.command()
def quantize(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="File to write.")],
    march: Annotated[
        str, typer.Option(help="bernoulli2 (X3), bayes (J5, Ultra) or bayes-e (X5).")
    ] = "bayes-e",
    int16: Annotated[
        list[str] | None,
        typer.Option("--int16", metavar="NODE", help="Set this node to int16; repeatable."),
    ] = None,
    cpu: Annotated[
        list[str] | None,
        typer.Option("--cpu", metavar="NODE", help="Move this node to the CPU; repeatable."),
    ] = None,
    input_shape: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=1x3x48x192", help="Shape of an input of open size; repeatable."),
    ] = None,
) -> None:
    """Write the integer model of a calibrated one, in the converter's operators."""
    from hbdebug import conversion

    made = conversion.quantize(
        model,
        output,
        march=march,
        int16=int16 or (),
        cpu=cpu or (),
        shapes=dict(conversion.parse_shape(text) for text in input_shape or ()),
    )
    typer.echo(f"{made.integers} nodes in integers, {len(made.floats)} in float; {made.file}")
    for name, op_type in made.floats:
        typer.echo(f"in float: {name} ({op_type})")
    for note in made.notes:
        typer.echo(f"note: {note}")


@app.command()
def report(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="A sensitivity.json file.")],
    top: TopOption = 20,
    format: FormatOption = Format.text,  # noqa: A002 - the option's name is the user's word
) -> None:
    """Show a saved result again, without running anything."""
    from hbdebug.report.record import read_result

    _show(read_result(result), format, top, ())


def _observer() -> AbstractContextManager[Observer]:
    """Return what shows progress: a bar on a terminal, else only the lines that matter."""
    if not sys.stderr.isatty():
        from hbdebug.observer import LineObserver

        return nullcontext(LineObserver())
    from hbdebug.report.progress import ProgressObserver

    return ProgressObserver()


def _deliver(result: SensitivityResult, folder: Path, form: Format, top: int) -> None:
    """Write the files and print the report."""
    from hbdebug.report.record import dumps_result, write_text_atomic
    from hbdebug.report.suggestion import CONFIG_FILE, suggestion_config

    files = {"sensitivity.json": dumps_result(result)}
    yaml_text = suggestion_config(result)
    if yaml_text is not None:
        files[CONFIG_FILE] = yaml_text
    for name, text in files.items():
        write_text_atomic(folder / name, text)
    _show(result, form, top, [str(folder / name) for name in files])


def _show(result: SensitivityResult, form: Format, top: int, files: list[str] | tuple[()]) -> None:
    from hbdebug.report.record import dumps_result
    from hbdebug.report.suggestion import suggestion_config
    from hbdebug.report.terminal import make_console, render_sensitivity

    if form is Format.json:
        sys.stdout.write(dumps_result(result))
        return
    render_sensitivity(
        result,
        top=top,
        console=make_console(sys.stdout),
        yaml_text=suggestion_config(result),
        files=files,
    )


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str) -> int:
    """Read a size such as ``512MiB``, ``2G`` or ``1000000``.

    Raises:
        UsageError: It is none, or not positive.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", text.strip().upper())
    size = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if size <= 0:
        raise UsageError(f"{text!r} is no size", hint="Write it like 512MiB or 2GiB.")
    return size


def _version(value: bool) -> None:
    if value:
        typer.echo(f"hbdebug {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Find which nodes a quantized ONNX model loses accuracy in, and what to change about it."""


def main() -> None:
    """Run the command line; the only place that turns an error into an exit code."""
    # Imports and sessions make many objects that stay, and next to no cycles: at the default
    # threshold the collector looks through them again and again, a few percent of a short run.
    gc.set_threshold(100_000)
    try:
        app()
    except HbdebugError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("interrupted before anything was finished", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the last resort before the terminal
        import traceback

        traceback.print_exc()
        typer.echo(
            f"internal error: {type(error).__name__}: {error}\n"
            "  This is a fault of hbdebug. Please report it with the lines above.",
            err=True,
        )
        sys.exit(HbdebugError.exit_code)
