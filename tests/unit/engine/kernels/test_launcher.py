"""`Launcher`: a kept kernel runs only where Triton would run the same one. A stand-in for Triton; no GPU."""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.engine.kernels import launcher
from ostinato.engine.kernels.launcher import Launcher, LaunchHost, specialisation
from ostinato.errors import JitInCaptureError
from ostinato.runtime.breaks import recording

CPU = -1  # what a CPU tensor says of its device
ARGUMENTS = ["x", "y", "n", "m", "eps"]
BUFFER = torch.zeros(64, dtype=torch.uint8)
BUFFER = BUFFER[-BUFFER.data_ptr() % 16 :]  # begins at a multiple of 16


def triton_specialisation(argument):
    """What Triton compiles another kernel for, said once more."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, float):
        return "fp32"
    if isinstance(argument, bool):
        return "u1"
    if argument == 1:
        return "constexpr"
    width = "i32" if -(2**31) <= argument < 2**31 else "i64"
    return width, argument % 16 == 0


class Compiled:
    """A compiled kernel that notes with what it was run."""

    function = "its function"
    packed_metadata = "its metadata"

    def __init__(self, key):
        self.key, self.runs = key, []

    def run(self, *args):
        self.runs.append(args)


class Kernel:
    """A `triton.jit` function that compiles for what Triton compiles for."""

    arg_names = (*ARGUMENTS, "SIZE", "BLOCK")

    def __init__(self, specialise=triton_specialisation):
        self.arg_names = list(self.arg_names)
        self.pre_run_hooks = []
        self.compiled, self.launches = {}, []
        self.compiles = True
        self._specialise = specialise

    def key(self, args):
        return tuple(map(self._specialise, args))

    def __getitem__(self, grid):
        def launch(*args, **named):
            self.launches.append((grid, args, named))
            if not self.compiles:
                return None
            return self.compiled.setdefault(self.key(args), Compiled(self.key(args)))

        return launch


@pytest.fixture
def host(monkeypatch):
    """What a process with CUDA has; tests change what it answers."""
    state = SimpleNamespace(device=CPU, stream=7, launch_enter_hook=None, launch_exit_hook=SimpleNamespace(calls=[]))
    driver = SimpleNamespace(
        get_current_device=lambda: state.device, get_current_stream=lambda device: (device, state.stream)
    )
    monkeypatch.setattr(launcher, "_host", lambda: (LaunchHost(driver, state), None))
    return state


def made(kernel, mark="stand-in"):
    return Launcher(kernel, mark, num_warps=4, BLOCK=32, SIZE=8)


def floats(offset=0):
    return BUFFER[offset : offset + 16].view(torch.float32) if offset % 4 == 0 else BUFFER[offset : offset + 16]


ALIGNED = (floats(), floats(16))


def test_a_second_launch_runs_the_kernel_that_triton_compiled_for_the_first(host):
    kernel = Kernel()
    launch = made(kernel)
    launch((4, 2, 1), ALIGNED, 5, 16, 0.5)
    assert kernel.launches == [((4, 2, 1), (*ALIGNED, 5, 16, 0.5), {"num_warps": 4, "BLOCK": 32, "SIZE": 8})]
    launch((9, 1, 3), ALIGNED[::-1], 7, 32, 1.5)
    assert len(kernel.launches) == 1
    (compiled,) = kernel.compiled.values()
    pointers = ALIGNED[1].data_ptr(), ALIGNED[0].data_ptr()
    metadata_and_hooks = "its metadata", None, None, None
    assert compiled.runs == [
        (9, 1, 3, (CPU, 7), "its function", *metadata_and_hooks, *pointers, 7, 32, 1.5, 8, 32)
    ]  # the constants in the order of the kernel's parameters


def test_the_stream_is_that_of_the_launch(host):
    kernel = Kernel()
    launch = made(kernel)
    for stream in (7, 8, 9):  # a capture's, say
        host.stream = stream
        launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
    (compiled,) = kernel.compiled.values()
    assert [run[3] for run in compiled.runs] == [(CPU, 8), (CPU, 9)]


ANY_TENSOR = st.builds(
    lambda offset, dtype: BUFFER[offset : offset + 16].view(dtype),
    st.sampled_from([0, 8, 16, 24]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64]),
)
ANY_INTEGER = st.one_of(
    st.sampled_from([0, 1, 2, 16, 17, 2**31 - 16, 2**31, -16, -1, True]), st.integers(-(2**40), 2**40)
)
ANY_CALL = st.tuples(ANY_TENSOR, ANY_TENSOR, ANY_INTEGER, ANY_INTEGER, st.one_of(ANY_INTEGER, st.floats()))


def assert_like_triton(kernel, calls):
    launch = made(kernel)
    for x, y, *numbers in calls:
        asked, before = len(kernel.launches), {c: len(c.runs) for c in kernel.compiled.values()}
        launch((1, 1, 1), (x, y), *numbers)
        if len(kernel.launches) == asked:
            (ran,) = [c for c, runs in before.items() if len(c.runs) > runs]
            assert ran.key == kernel.key((x, y, *numbers))


@given(st.lists(ANY_CALL, max_size=30))
def test_what_runs_is_what_triton_would_run(calls):
    settings = SimpleNamespace(launch_enter_hook=None, launch_exit_hook=None)
    driver = SimpleNamespace(get_current_device=lambda: CPU, get_current_stream=lambda device: 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "_host", lambda: (LaunchHost(driver, settings), None))
        assert_like_triton(Kernel(), calls)


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
@given(st.lists(ANY_CALL, max_size=30))
def test_what_runs_is_what_the_installed_triton_would_run(calls):
    native = pytest.importorskip("triton._C.libtriton")
    compiler = pytest.importorskip("triton.backends.nvidia.compiler")
    if not hasattr(native, "native_specialize_impl"):
        pytest.skip("this Triton specialises in Python")
    settings = SimpleNamespace(launch_enter_hook=None, launch_exit_hook=None)
    driver = SimpleNamespace(get_current_device=lambda: CPU, get_current_stream=lambda device: 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "_host", lambda: (LaunchHost(driver, settings), None))
        kernel = Kernel(lambda arg: native.native_specialize_impl(compiler.CUDABackend, arg, False, True, True))
        assert_like_triton(kernel, calls)


@pytest.mark.parametrize(
    "other",
    [
        ((floats(), floats(8)), 5, 16, 0.5),  # misaligned
        ((floats(8), floats(16)), 5, 16, 0.5),  # another is
        ((floats(), BUFFER[16:32].view(torch.bfloat16)), 5, 16, 0.5),
        (ALIGNED, 1, 16, 0.5),
        (ALIGNED, 16, 16, 0.5),
        (ALIGNED, 5, 17, 0.5),
        (ALIGNED, 5, 16, 1),
    ],
)
def test_each_part_of_the_specialisation_alone_asks_triton(host, other):
    kernel = Kernel()
    launch = made(kernel)
    launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
    tensors, *numbers = other
    for _ in range(2):
        launch((1, 1, 1), tensors, *numbers)
    assert len(kernel.launches) == 2 and len(kernel.compiled) == 2
    launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
    assert [len(compiled.runs) for compiled in kernel.compiled.values()] == [1, 1]


@pytest.mark.parametrize("numbers", [(2**31, 16, 0.5), (-(2**31) - 1, 16, 0.5), (True, 16, 0.5)])
def test_numbers_of_other_types_are_always_triton_s(host, numbers):
    kernel = Kernel()
    launch = made(kernel)
    for _ in range(3):
        launch((1, 1, 1), ALIGNED, *numbers)
    assert len(kernel.launches) == 3


def test_tensors_elsewhere_are_always_triton_s(host):
    host.device = 0
    kernel = Kernel()
    launch = made(kernel)
    for _ in range(3):
        launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
    assert len(kernel.launches) == 3
    assert specialisation(0, ALIGNED) == (None, [])


def test_each_device_has_a_kernel_of_its_own():
    class On:
        def __init__(self, device):
            self.device, self.dtype = device, torch.float32

        def get_device(self):
            return self.device

        def data_ptr(self):
            return 4096

    keys = {specialisation(device, [On(device)])[0] for device in (0, 1)}
    assert len(keys) == 2 and None not in keys
    assert specialisation(0, [On(0), On(1)]) == (None, [])


def test_a_launch_is_made_again_and_again_and_asks_where_its_tensors_lie_now(host):
    kernel = Kernel()
    launcher_ = made(kernel)
    launch = launcher_.at((4, 2, 1), 5, 16, 0.5)
    launch(*ALIGNED)
    launch(*ALIGNED[::-1])
    launcher_.at((1, 1, 1), 7, 32, 0.25)(*ALIGNED)  # numbers of the same kinds
    assert len(kernel.launches) == 1
    (compiled,) = kernel.compiled.values()
    x, y = (tensor.data_ptr() for tensor in ALIGNED)
    assert [(run[:3], run[9:]) for run in compiled.runs] == [
        ((4, 2, 1), (y, x, 5, 16, 0.5, 8, 32)),
        ((1, 1, 1), (x, y, 7, 32, 0.25, 8, 32)),
    ]
    launch(*ALIGNED[:1], floats(8))
    assert len(kernel.launches) == 2, "another alignment"
    launcher_.at((4, 2, 1), 1, 16, 0.5)(*ALIGNED)
    assert len(kernel.launches) == 3, "another kind of number"


def test_the_first_tensor_stands_in_for_one_that_is_not_there(host):
    kernel = Kernel()
    launch = made(kernel).at((1, 1, 1), 5, 16, 0.5)
    launch(ALIGNED[0], None)
    launch(ALIGNED[1], None)
    launch(ALIGNED[0], ALIGNED[1])  # of the same dtype and alignment as the stand-in
    assert [args[:2] for _, args, _ in kernel.launches] == [(ALIGNED[0], ALIGNED[0])]
    (compiled,) = kernel.compiled.values()
    x, y = (tensor.data_ptr() for tensor in ALIGNED)
    assert [run[9:11] for run in compiled.runs] == [(y, y), (x, y)]
    launch(floats(8), None)
    assert len(kernel.launches) == 2 and kernel.key((floats(8), floats(8), 5, 16, 0.5)) in kernel.compiled


class PythonLauncher:
    """Python around a function that launches, as Triton has it."""

    num_scratch_bytes = 0

    def __init__(self, hand_on=lambda args: args):
        self.calls, self.launch = [], lambda *args: self.calls.append(args)
        self.hand_on, self.is_cooperative, self.is_early = hand_on, False, True

    def __call__(self, grid_x, grid_y, grid_z, stream, function, *args):
        scratch = None if self.num_scratch_bytes == 0 else bytearray(grid_x * self.num_scratch_bytes)
        settings = self.is_cooperative, self.is_early, scratch
        self.launch(grid_x, grid_y, grid_z, stream, function, *settings, *self.hand_on(args))


SIGNATURE = (b"signature",)


class NestingLauncher(PythonLauncher):
    """The same, as Triton has it from 3.7 on."""

    def __init__(self):
        super().__init__(lambda args: (*args[:4], self.signature, args[4:]))
        self.signature = SIGNATURE


@pytest.mark.parametrize("launcher_class", [PythonLauncher, NestingLauncher])
def test_python_around_the_function_that_launches_is_left_out(monkeypatch, host, launcher_class):
    kernel, run = Kernel(), launcher_class()
    launch = made(kernel).at((4, 2, 1), 5, 16, 0.5)
    kernel.compiled[kernel.key((*ALIGNED, 5, 16, 0.5))] = SimpleNamespace(
        run=run, function="its function", packed_metadata="its metadata"
    )
    launch(*ALIGNED)
    assert not run.calls, "nothing is launched to find out"
    launch(*ALIGNED)
    run(4, 2, 1, (CPU, 7), "its function", "its metadata", None, None, None, *pointers_of(ALIGNED), 5, 16, 0.5, 8, 32)
    ours, theirs = run.calls
    assert ours == theirs
    monkeypatch.setattr(PythonLauncher, "__call__", None)
    launch(*ALIGNED)  # without it
    assert run.calls[2] == ours


class Scratch(PythonLauncher):
    num_scratch_bytes = 8


def function_with_a_launch(*args):
    """Never called with nonsense."""
    raise AssertionError


@pytest.mark.parametrize(
    "run",
    [
        Scratch(),
        PythonLauncher(lambda args: args[::-1]),
        PythonLauncher(lambda args: args[1:]),
        PythonLauncher(lambda args: (args,)),
        PythonLauncher(lambda args: (*args[:4], args[4:], 7)),
        PythonLauncher(lambda args: (*args[:4], args[:3:-1])),
        PythonLauncher(lambda args: (3, *args)),
        "".format,
        function_with_a_launch,
    ],
)
def test_python_that_does_more_than_to_hand_on_is_kept(monkeypatch, run):
    monkeypatch.setattr(function_with_a_launch, "launch", print, raising=False)
    assert launcher._innermost(run) == (run, (), (), False)


def pointers_of(tensors):
    return [tensor.data_ptr() for tensor in tensors]


def test_who_listens_to_launches_hears_all_of_them(host):
    kernel = Kernel()
    launch = made(kernel)
    for listener, attribute in ((print, "launch_enter_hook"), (SimpleNamespace(calls=[print]), "launch_exit_hook")):
        silent, before = getattr(host, attribute), len(kernel.launches)
        setattr(host, attribute, listener)
        for _ in range(2):
            launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
        assert len(kernel.launches) == before + 2
        setattr(host, attribute, silent)
    launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
    before = len(kernel.launches)
    kernel.pre_run_hooks.append(print)
    launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
    assert len(kernel.launches) == before + 1


def test_a_launch_that_a_hook_has_stopped_is_not_kept(host):
    kernel = Kernel()
    launch = made(kernel)
    kernel.compiles = False
    launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
    kernel.compiles = True
    launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
    assert len(kernel.launches) == 2
    launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
    assert len(kernel.launches) == 2


def test_a_first_launch_in_a_capture_is_refused_by_its_mark(host):
    kernel = Kernel()
    launch = made(kernel, "launcher[not met before]")
    with recording(), pytest.raises(JitInCaptureError, match=r"launcher\[not met before\]"):
        launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
    assert not kernel.launches
    launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
    with recording():
        launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
    (compiled,) = kernel.compiled.values()
    assert len(compiled.runs) == 1


def test_constants_come_last_and_arguments_are_counted(host):
    kernel = Kernel()
    with pytest.raises(AssertionError, match="constants come last"):
        Launcher(kernel, "stand-in", n=3, SIZE=8, BLOCK=32)
    with pytest.raises(AssertionError, match="constants come last"):
        Launcher(kernel, "stand-in", SIZE=8)
    with pytest.raises(AssertionError, match="stand-in"):
        made(kernel)((1, 1, 1), ALIGNED, 5)


def parameters(names):
    """A callable class whose instances take ``names``."""

    def call(self, *args):
        """Never run."""

    own = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
    call.__signature__ = inspect.Signature(own)
    return type("StandInLauncher", (), {"__call__": call})


def triton_of(*, backend="cuda", names=("gridX", "gridY", "gridZ", "stream", "function", "args"), hooks=True):
    driver = SimpleNamespace(
        get_current_target=lambda: SimpleNamespace(backend=backend),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        launcher_cls=parameters(names),
    )
    settings = SimpleNamespace(**dict.fromkeys(["launch_enter_hook", "launch_exit_hook"] if hooks else []))
    return SimpleNamespace(
        knobs=SimpleNamespace(runtime=settings), runtime=SimpleNamespace(driver=SimpleNamespace(active=driver))
    )


def test_a_triton_that_is_known_is_used():
    host, reason = launcher._host_of(triton_of())
    assert reason is None and not host.has_listeners() and host.current_device() == 0


class NoDriver:
    @property
    def active(self):
        raise RuntimeError("0 active drivers")


def interpreting():
    """A Triton that interprets, where there is no GPU."""
    triton = triton_of()
    triton.knobs.runtime.interpret, triton.runtime.driver = True, NoDriver()
    return triton


@pytest.mark.parametrize(
    ("triton", "reason"),
    [
        (interpreting(), "interpreted"),
        (triton_of(hooks=False), "who listens"),
        (triton_of(backend="hip"), "hip backend"),
        (triton_of(names=("function", "stream", "gridX", "gridY", "gridZ")), "its launcher takes"),
    ],
)
def test_a_triton_that_is_not_known_launches_itself(monkeypatch, triton, reason):
    host, why = launcher._host_of(triton)
    assert host is None and reason in why
    monkeypatch.setattr(launcher, "_host", lambda: (host, why))
    assert launcher.why_triton_launches() == why
    kernel = Kernel()
    launch = made(kernel)
    for _ in range(2):
        launch((1, 1, 1), ALIGNED, 5, 16, 0.5)
    assert len(kernel.launches) == 2
