"""Whatever a user passes as `--out`, no file of theirs is lost, no link or pipe written through."""

import hashlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import export, save_weights
from keras_vit._base.files import atomic_write, write_bytes
from keras_vit._base.manifest import MANIFEST, own_files, read_manifest, write_manifest
from keras_vit._base.output_folder import OutputFolder
from keras_vit.curation.kept_measures import KeptMeasures
from keras_vit.data.sources.cached_files import _write_one
from keras_vit.tasks import Classification
from keras_vit.training.callbacks import BestModel, HistoryLog
from keras_vit.training.state_file import write_state
from keras_vit_cli.exit_status import ended_by_sigterm
from keras_vit_cli.predict.answer_files import answered, line_writer, parquet_writer
from keras_vit_cli.predict.schema import Schema
from keras_vit_cli.report.run_plots import draw_curves, save_figure
from keras_vit_cli.search.result_page import write_result_page
from keras_vit_cli.search.result_table import write_csv
from keras_vit_cli.train.job import RUN_FILES, SCRATCH_FILES, Job
from tests import bank, processes
from tests.backend import refused
from tests.faults import fault, limited_files

MODES = {"plain": {}, "--overwrite": {"overwrite": True}, "--resume": {"resume": True}}


def write(path: Path, text: str = "mine") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def former_run(folder: Path) -> Path:
    files = ["model.keras", "report.md", "saved_models/x/1/saved_model.pb"]
    for name in files:
        write(folder / name, "former")
    write_manifest(folder, "run", files, complete=True)
    return folder


def interrupted_run(folder: Path) -> None:
    write(folder / "checkpoints/step-000000003.safetensors", "state")
    write(folder / "history.csv", "epoch\n0\n")
    write_manifest(folder, "run", complete=False)


def on_a_mount(path: Path) -> None:
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")


def list_of_foreign_files(folder: Path, thesis: str) -> None:
    """A list as ours, by which the thesis belongs to a run."""
    digest = hashlib.sha256(b"years of work").hexdigest()
    head = '# keras_vit {"kind": "run", "complete": true, "replaces": true}'
    write(folder / MANIFEST, f"{head}\n{digest}  {thesis}\n")


STEPS: dict[str, Callable[..., object]] = {
    "run": former_run,
    "interrupted": interrupted_run,
    "write": write,
    "link": Path.symlink_to,
    "folder": Path.mkdir,
    "mount": on_a_mount,
    "locked": lambda path: path.mkdir(mode=0o500),  # for all but root
    "list": list_of_foreign_files,
    "sha256sum": lambda path: write(path / MANIFEST, f"{'0' * 64}  thesis.tex\n"),
}


def make(home: Path, steps: str) -> None:
    """What there is before, in a home: `kind path [argument]`, between semicolons."""
    for step in filter(None, steps.split("; ")):
        kind, path, *argument = step.split()
        STEPS[kind](home / path, *argument)


def run_once(output: OutputFolder, **mode: bool) -> None:
    with output.opened(**mode) as folder:
        write(folder / "model.keras", "new")
        write(folder / "checkpoints/step-000000009.safetensors", "state")
        output.finish()
        output.publish()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with images, documents and a working directory, which is also the current one."""
    home = tmp_path / "home"
    for name, i in itertools.product(("cat", "dog"), range(3)):
        write(home / f"photos/{name}/{i}.jpg", f"{name} {i}")
    write(home / "documents/thesis.tex", "years of work")
    write(home / "documents/model.keras", "somebody's model")
    write(home / "work/notes.txt", "notes")
    write(home / "photos.partial/old.jpg", "images, too")
    monkeypatch.chdir(home / "work")
    monkeypatch.setattr(Path, "home", lambda: home)
    yield home
    for mount in home.rglob("mount"):
        subprocess.run(["umount", "-l", mount], capture_output=True)


@pytest.fixture
def out(home: Path) -> Path:
    return home / "runs/a"


@pytest.fixture
def output(out: Path) -> OutputFolder:
    return Job("digits", out).output


# The images, what holds them or lies in them; the working directory, and what holds it; folders of
# the system and of somebody; files: refused in every mode, with ~ for the home.
REFUSED = """~/photos ../photos ../photos/ ../photos/cat/.. ~/photos/run ~/photos/cat/runs/1
~/photos/cat ~ ~/.. ~/photos/cat/0.jpg . ~/work ../work/../work .. ../.. / /tmp /root /root/..
~/documents ~/work/notes.txt /dev/null ~/work/notes.txt/run"""
# What is passed as --out, and what is made there before.
PLACES: dict[str, tuple[str, str]] = {
    **{out: (out, "") for out in REFUSED.split()},
    "an empty name": ("", ""),
    "foreign files beside": ("~/photos", "run photos2"),
    "a link to images": ("~/work/l", "link work/l ../photos"),
    "a link to foreign files": ("~/work/l", "link work/l ../documents"),
    "a link to an empty folder": ("~/l", "folder e; link l e"),
    "a link to a former run": ("~/l", "run r; link l r"),
    "a broken link": ("~/work/l", "link work/l nowhere"),
    "through a link into images": ("~/work/l/run", "link work/l ../photos"),
    "a link back up": ("~/work/l/photos", "link work/l .."),
    "a mount": ("~/mount", "mount mount"),
    "a mount with a run": ("~/mount", "mount mount; run mount"),
    "on a mount": ("~/mount/run", "mount mount"),
    "read-only": ("~/locked", "locked locked"),
    "new": ("~/runs/new", ""),
    "empty": ("~/empty", "folder empty"),
    "a former run": ("~/runs/a", "run runs/a"),
    "a former run with notes": ("~/runs/a", "run runs/a; write runs/a/notes.txt"),
    "a former run, changed": ("~/runs/a", "run runs/a; write runs/a/report.md"),
    "a former run with a link": ("~/runs/a", "run runs/a; link runs/a/more ../../photos"),
    "an interrupted run": ("~/runs/a", "interrupted runs/a.partial"),
    "an interrupted run with notes": ("~/a", "interrupted a.partial; write a.partial/notes.txt"),
    "an interrupted run beside a former": ("~/runs/a", "run runs/a; interrupted runs/a.partial"),
    "interrupted, a link": ("~/a", "interrupted a.partial; link a.partial/checkpoints/x ../photos"),
    "a foreign .partial": ("~/runs/a", "write runs/a.partial/model.keras"),
    "a foreign .previous": ("~/runs/a", "write runs/a.previous/model.keras"),
    "a .partial that is a link": ("~/work/a", "link work/a.partial ../documents"),
    "a forged list": ("~/forged", "list forged ../documents/thesis.tex"),
    "a list through a link": ("~/a", "run a; link a/docs ../documents; list a docs/thesis.tex"),
    "a sha256sum of somebody": ("~/documents", "sha256sum documents"),
}
REPLACED = {name for name in PLACES if name.startswith("a former run")}
REPLACED |= {"a list through a link", "a forged list"}
RESUMED = {"an interrupted run", "an interrupted run with notes"}
BESIDE = "an interrupted run beside a former"
NEW = {"new", "empty", "on a mount"}


def contents(root: Path) -> dict[str, str]:
    paths = [Path(place, name) for place, dirs, files in os.walk(root) for name in dirs + files]
    links = {os.fspath(path): f"-> {os.readlink(path)}" for path in paths if path.is_symlink()}
    files = {path for path in paths if path.is_file() and not path.is_symlink()}
    return {os.fspath(path): path.read_text() for path in files} | links


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", PLACES)
def test_nothing_foreign_is_ever_gone(case: str, mode: str, home: Path) -> None:
    out, steps = PLACES[case]
    make(home, steps)
    out = out.replace("~", str(home))
    place, interrupted = Path(os.path.abspath(out)), RESUMED | {BESIDE}
    before = contents(home)
    ours = {
        os.fspath(folder / name)
        for folder in (place, Path(f"{place}.partial"))
        if folder.is_dir() and not folder.is_symlink()
        for name in own_files(folder)
    } | {path for path in before if "/checkpoints/" in path or path.endswith("history.csv")}
    permitted = {"read-only"} if os.getuid() == 0 else set()
    output = Job(str(home / "photos"), Path(out)).output
    try:
        run_once(output, **MODES[mode])
    except (OSError, ValueError) as error:
        message = str(error)
        assert "\n" not in message
        assert message.endswith((".", "1", "start one")) or ": " in message, message
        untouched = contents(home)
        if mode != "--resume" or case not in interrupted:
            assert {p: untouched.get(p) for p in before} == before
    else:
        assert (place / "model.keras").read_text() == "new"
        assert not (place / "checkpoints").exists()
        assert not Path(f"{place}.partial").exists()
        works = {"plain": NEW, "--resume": RESUMED, "--overwrite": NEW | REPLACED | interrupted}
        assert case in permitted | works[mode], "this was to be refused"
    after = contents(home)
    texts = list(after.values())
    for path, text in before.items():
        if path not in ours:
            assert after.get(path) == text or text in texts, f"{path} is gone"


def test_what_appeared_in_a_run_stays(out: Path, output: OutputFolder, capsys: Any) -> None:
    """But a model that was exported again, whose own list counts; an edited file is kept beside."""
    exported = out / "saved_models/a/1"
    with output.opened() as folder:
        write(folder / "report.md", "former")
        write(folder / "saved_models/a/1/saved_model.pb", "graph")
        write_manifest(folder / "saved_models/a/1", "SavedModel", ["saved_model.pb"], complete=True)
        output.finish()
        output.publish()
    for version, text in ((exported, "again"), (exported.with_name("2"), "version 2")):
        write(version / "saved_model.pb", text)
        write_manifest(version, "SavedModel", ["saved_model.pb"], complete=True)
    with output.opened(overwrite=True) as folder:
        write(folder / "model.keras", "new")
        output.finish()
        write(out / "appeared.txt", "while it trained")
        output.publish()
    assert {path.name for path in out.parent.iterdir()} == {"a"}
    assert not exported.exists()
    assert not (out / "report.md").exists()
    texts = {"appeared.txt": "while it trained", "saved_models/a/2/saved_model.pb": "version 2"}
    assert {name: (out / name).read_text() for name in texts} == texts
    write(out / "model.keras", "edited")
    run_once(output, overwrite=True)
    assert (out.parent / "a.previous/model.keras").read_text() == "edited"
    assert "a.previous keeps files of the former" in capsys.readouterr().out


def test_a_move_that_fails_brings_back_what_was_there(out: Path, output: OutputFolder) -> None:
    before = contents(former_run(out))
    with output.opened(overwrite=True) as folder:
        write(folder / "model.keras", "new")
        output.finish()
        for number in range(2):  # to the former place, and to the new one
            with pytest.raises(OSError, match="No space left"), fault(out.parent, number) as hit:
                output.publish()
            assert hit.happened.startswith("os.rename")
            assert contents(out) == before


@pytest.mark.parametrize("obstacle", ["link a ../documents", "write a", "write a/x.txt"])
def test_a_place_that_is_taken(obstacle: str, home: Path, out: Path, output: OutputFolder) -> None:
    """The last move fails: the run stays complete, and `--resume` only moves it."""
    with output.opened() as folder:
        write(folder / "model.keras", "new")
        output.finish()
        make(out.parent, obstacle)
        refused(r"a\.partial.*resume=True", output.publish, error=OSError)
    assert output.is_finished()
    before = contents(home / "documents")
    out.rename(home / "elsewhere")
    with output.opened(resume=True):
        assert output.is_finished()
        output.publish()
    assert ((out / "model.keras").read_text(), contents(home / "documents")) == ("new", before)


@pytest.mark.parametrize("stage", range(13))
def test_a_kill_while_moving(stage: int, out: Path, output: OutputFolder) -> None:
    """Between any two renames or deletions the next attempt finds everything it needs."""
    write(former_run(out) / "notes.txt", "mine")

    def publish() -> None:
        with fault(out.parent, 10**9, 0) as kill, output.opened(overwrite=True) as folder:
            write(folder / "model.keras", "new")
            output.finish()
            kill.number = kill.seen + stage
            output.publish()

    refused("", publish, error=KeyboardInterrupt)  # as by a signal: nothing catches it
    if output.workspace.exists():
        with output.opened(resume=True):
            output.publish()
    assert (out / "model.keras").read_text() == "new"
    assert "mine" in contents(out.parent).values()


OTHER = """
import sys, time, pathlib
from keras_vit_cli.train.job import Job
with Job('digits', pathlib.Path(sys.argv[1])).output.opened():
    print('in', flush=True)
    time.sleep(600)
"""


def test_one_process_at_a_time_writes(out: Path, output: OutputFolder, tmp_path: Path) -> None:
    """And one that was killed does not hold the lock."""
    other = processes.start(OTHER, str(out), printed=tmp_path / "printed")
    while other.output() != "in\n":
        assert other.poll() is None, other.output()
        time.sleep(0.01)
    state = write(output.workspace / "checkpoints/step-000000001.safetensors", "state")
    try:
        for mode in MODES.values():
            words = f"Another process is writing {output.workspace}"
            with pytest.raises(BlockingIOError, match=words), output.opened(**mode):
                pass
            assert state.exists()
    finally:
        other.kill()
    with pytest.raises(FileExistsError, match="Continue it with resume=True"), output.opened():
        pass
    for name in ("--resume", "--overwrite"):
        with output.opened(**MODES[name]) as folder:
            assert folder.is_dir()


def test_the_list_is_one_that_sha256sum_checks(tmp_path: Path) -> None:
    names = ["plain.txt", "with space.txt", "back\\slash.txt", "line\nbreak.txt", "ü\udcff.txt"]
    for name in names:
        (tmp_path / name).write_text(name.encode("utf-8", "replace").decode())
    write_manifest(tmp_path, "run", names, complete=True)
    assert set(read_manifest(tmp_path).sums) == set(names)
    assert sorted(own_files(tmp_path)) == sorted([*names, MANIFEST])
    check = ["sha256sum", "--check", "--strict", MANIFEST]
    subprocess.run(check, cwd=tmp_path, capture_output=True, check=True)
    output = OutputFolder(Path("a"), "run", RUN_FILES, SCRATCH_FILES, staging="a.partial")
    assert output.workspace == Path.cwd() / "a.partial"


@pytest.mark.parametrize("files", ["a/b/model.keras", "checkpoints/1/state", "m.keras notes.txt"])
def test_a_failed_attempt_leaves_what_can_go_on(files: str, tmp_path: Path) -> None:
    runs, more = tmp_path / "runs", {"staging": "run.partial", "resumable": True}
    output = OutputFolder(runs / "run", "run", ["*.keras"], ["checkpoints/*"], **more)

    def attempt() -> None:
        with output.opened() as workspace:
            for name in files.split():
                write(workspace / name, "x")
            raise ValueError("no download")

    refused("no download", attempt)
    stays = [name for name in files.split() if not name.endswith(".keras")]
    assert output.workspace.exists() == runs.exists() == bool(stays)
    assert [name for name in files.split() if (output.workspace / name).exists()] == stays


SCHEMA = Schema(Classification(("cat", "dog")), 1)


def write_answers(path: Path) -> None:
    format = path.suffix[1:]
    earlier = answered(path, format, SCHEMA) if path.stem == "resumed" else None
    if format == "parquet":
        writer = parquet_writer(path, SCHEMA.example)
    else:
        writer = line_writer(path, format, SCHEMA, earlier and earlier.end)
    with writer as write:
        write([SCHEMA.row("a.jpg", np.ones(2))])


def end_epoch(callback: keras.callbacks.Callback) -> None:
    callback.set_model(bank.tiny())
    callback.on_train_begin()
    callback.on_epoch_end(0, {"val_loss": 1.0})


WRITERS: dict[str, Callable[[Path], object]] = {
    "SHA256SUMS": lambda path: write_manifest(path.parent, "run", complete=False),
    "answers.csv": write_answers,
    "answers.parquet": write_answers,
    "best.keras": lambda path: end_epoch(BestModel(path)),
    "curves.png": lambda path: save_figure(draw_curves({"loss": [1.0]}), path),
    "history.csv": lambda path: end_epoch(HistoryLog(path)),
    "kept.bmp": lambda path: _write_one(np.zeros((60, 60, 3), np.uint8), path, 60),
    "m.keras": lambda path: save_weights(bank.tiny(), path),
    "m.npz": lambda path: save_weights(bank.tiny(), path, "google"),
    "m.pte": lambda path: export(bank.tiny(), path, "executorch", overwrite=True),
    "m.pt2": lambda path: export(bank.tiny(), path, "torch", overwrite=True),
    "m.safetensors": lambda path: save_weights(bank.tiny(), path, "timm"),
    "measures.bin": lambda path: KeptMeasures(path.parent),
    "page.html": lambda path: write_result_page(path, "", "", [], {}),
    "resumed.jsonl": write_answers,
    "step.safetensors": lambda path: write_state(path, {"a": np.zeros(9999)}, {}),
    "table.csv": lambda path: write_csv(path, ["file"], [["a.jpg"]] * 999),
}
OBSTACLES: tuple[Callable[[Path], object], ...] = (
    lambda path: path.symlink_to("../mine"),
    lambda path: path.symlink_to("../nowhere"),
    os.mkfifo,
    Path.mkdir,
)


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_no_file_is_not_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("my only copy")
    for number, make in enumerate(OBSTACLES):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        make(path)
        refused(name, WRITERS[name], path, error=(OSError, ValueError))
        assert os.listdir(path.parent) == [name]
    assert (tmp_path / "mine").read_text() == "my only copy"
    assert not (tmp_path / "nowhere").exists()
    for former in (None, b"epoch,loss\r\n0,1.0\r\n"):
        path = tmp_path / name
        if former:
            path.write_bytes(former)
        with limited_files(2):
            refused(name, WRITERS[name], path, error=(OSError, ValueError) if former else OSError)
        assert former is None or path.read_bytes() == former
        assert not list(tmp_path.glob(".*"))


def test_what_others_wrote_stays_and_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "measures.bin"
    path.write_text("mine")
    refused(r"measures\.bin was not written by", KeptMeasures, tmp_path, error=FileExistsError)
    overtaken = pytest.raises(FileExistsError, match=r"not replaced: what was written is in .*bin")
    with overtaken, atomic_write(path, new=True) as temporary:
        temporary.write_text("new")
    with pytest.raises(SystemExit), ended_by_sigterm(), atomic_write(tmp_path / "a.bin"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert not list(tmp_path.glob(".*"))
    assert sorted(file.read_text() for file in tmp_path.glob("*.bin")) == ["mine", "new"]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: Any) -> None:
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda *a: (calls.append("fsync"), fsync(*a)))
    monkeypatch.setattr(os, "replace", lambda *a: (calls.append("replace"), replace(*a)))
    write_bytes(tmp_path / "a.bin", b"new")
    assert calls == ["fsync", "replace", "fsync"]  # the file, and its name
