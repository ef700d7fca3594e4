"""The model of the device at hand.

Which one is taken, when a kept measurement is believed, and that nothing is computed.
"""

import dataclasses
import importlib
import json
import math
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import depth
from depth import calibration
from depth.models import generic_accelerator, generic_cpu

DEVICE = depth.Device(
    "the measured one",
    kernel_latency=4.0,
    loop_latency=2.0,
    trip_latency=8.0,
    rates={"float32": 100.0},
    bandwidth=1e3,
    memory=1e6,
)
model_of = importlib.import_module("depth.at_hand").model_of


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    """An empty cache folder; and whatever measures fails."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibration, "measure", lambda: pytest.fail("nothing may be measured"))
    return tmp_path


@pytest.fixture
def generic():
    """What there is without a measurement."""
    return generic_cpu(calibration.cores())


class Other:
    """A device that this machine does not have."""

    def __init__(self, platform, device_kind):
        self.platform, self.device_kind = platform, device_kind


def keep(monkeypatch, **changes):
    """The device that a calibration has kept, with other figures."""
    monkeypatch.setattr(calibration, "measure", lambda: DEVICE.replace(**changes))
    return depth.calibrate(refresh=True)


def write(content):
    """The file of the calibration, holding this."""
    path = calibration.cache_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# -- the kept measurement -------------------------------------------------------------------------


@pytest.mark.parametrize("platform", [None, "cpu"], ids=["default", "cpu"])
def test_what_is_measured_is_taken_and_else_the_generic_model(monkeypatch, generic, platform):
    assert depth.at_hand(platform) == generic
    kept = keep(monkeypatch)
    assert depth.at_hand(platform) == kept == DEVICE
    os.unlink(calibration.cache_file())
    assert depth.at_hand(platform) == generic


@pytest.mark.parametrize("is_measured", [False, True])
def test_the_limit_of_small_loops_is_that_of_the_flag(monkeypatch, generic, is_measured):
    expected = keep(monkeypatch, small_loop=1024.0) if is_measured else generic
    flag = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold="
    monkeypatch.setenv(
        "XLA_FLAGS", f"{flag}1 --xla_backend_optimization_level=3 {flag}65536,other=2"
    )
    found = depth.at_hand("cpu")
    assert found == expected.replace(small_loop=65536.0)
    assert depth.at_hand("cpu") is found  # choices are cached by identity
    assert depth.at_hand("tpu").small_loop == 0
    monkeypatch.setenv("XLA_FLAGS", "")
    assert depth.at_hand("cpu") == expected


def test_a_new_measurement_is_noticed_at_once(monkeypatch):
    for latency in (1.0, 2.0, 3.0, 4.0):
        keep(monkeypatch, call_latency=latency)
        assert depth.at_hand().call_latency == latency


def test_a_measurement_of_another_process_is_noticed(monkeypatch, tmp_path):
    keep(monkeypatch, call_latency=1.0)
    path = calibration.cache_file()
    old = path.read_text()
    assert depth.at_hand().call_latency == 1.0
    Path(tmp_path, "new").write_text(old.replace('"call_latency": 1.0', '"call_latency": 2.0'))
    os.replace(tmp_path / "new", path)
    assert depth.at_hand().call_latency == 2.0


def test_another_cache_folder_is_noticed(monkeypatch, tmp_path, generic):
    keep(monkeypatch, call_latency=1.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert depth.at_hand() == generic
    keep(monkeypatch, call_latency=2.0)
    for folder, latency in ((tmp_path, 1.0), (tmp_path / "other", 2.0)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        assert depth.at_hand().call_latency == latency


@pytest.mark.parametrize("content", ["measured", "not json"])
def test_a_file_is_read_once(monkeypatch, content):
    if content == "measured":
        keep(monkeypatch)
    else:
        write(content)
    first = depth.at_hand()
    monkeypatch.setattr(calibration.json, "loads", lambda text: pytest.fail("read again"))
    assert depth.at_hand() == depth.at_hand("cpu") == first


def test_a_file_that_could_not_be_opened_is_tried_again(monkeypatch, generic):
    keep(monkeypatch)
    with monkeypatch.context() as now:
        now.setattr(
            Path,
            "read_text",
            lambda *args, **options: (_ for _ in ()).throw(
                PermissionError(13, "Permission denied")
            ),
        )
        assert depth.at_hand() == generic
    assert depth.at_hand() == DEVICE


# -- what is not believed -------------------------------------------------------------------------


def older_jax(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.4.1")


def more_cores(monkeypatch):
    monkeypatch.setattr(calibration, "cores", lambda: 12345)


def another_measurement(monkeypatch):
    monkeypatch.setattr(calibration, "VERSION", calibration.VERSION - 1)


def another_device(monkeypatch):
    monkeypatch.setattr(calibration, "default_device", lambda: Other("cpu", "another cpu"))


CHANGES = [older_jax, more_cores, another_measurement, another_device]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("copied", [False, True], ids=["as it is", "under the name of today"])
def test_what_was_measured_under_other_conditions_is_ignored(monkeypatch, generic, change, copied):
    with monkeypatch.context() as then:
        change(then)
        keep(then)
        stale = calibration.cache_file()
    if copied:
        write(stale.read_bytes())
    assert stale.exists()
    assert depth.at_hand() == generic


@pytest.mark.parametrize("copied", [False, True], ids=["as it is", "under the name of today"])
def test_what_was_measured_without_x64_is_ignored_with_it(monkeypatch, generic, copied):
    with jax.enable_x64(False):
        keep(monkeypatch)
        assert depth.at_hand() == DEVICE
        stale = calibration.cache_file()
    if copied:
        write(stale.read_bytes())
    assert depth.at_hand() == generic


def content(conditions=None, **changes):
    """The text of a file that is good but for the changes."""
    return json.dumps(
        {
            "conditions": calibration._conditions(calibration.default_device())
            if conditions is None
            else conditions,
            "device": dataclasses.asdict(DEVICE) | changes,
        }
    )


BAD = {
    "empty": lambda: "",
    "garbage": lambda: b"\xff\xfe\x00 no text",
    "cut off": lambda: content()[:-9],
    "list": lambda: "[]",
    "list of one": lambda: f"[{content()}]",
    "number": lambda: "3",
    "null": lambda: "null",
    "nested too deep": lambda: "[" * 60000,
    "bare device": lambda: json.dumps(dataclasses.asdict(DEVICE)),
    "no conditions": lambda: content(conditions={}),
    "device is a list": lambda: json.dumps(json.loads(content()) | {"device": []}),
    "unknown field": lambda: content(colour="red"),
    "missing field": lambda: content().replace('"bandwidth"', '"source"'),
    "negative": lambda: content(bandwidth=-1.0),
    "zero rate": lambda: content(rates={"float32": 0.0}),
    "not a number": lambda: content(kernel_latency=math.nan),
    "infinite": lambda: content(bandwidth=math.inf),
    "infinite rate": lambda: content(vector_rates={"move": math.inf}),
    "too large": lambda: content(memory=10**400),
    "text": lambda: content(bandwidth="fast"),
    "null for a number": lambda: content(bandwidth=None),
    "true for a number": lambda: content(bandwidth=True),
    "rates of text": lambda: content(rates="fast"),
    "rates for bandwidth": lambda: content(bandwidth={"float32": 1.0}),
    "name is a list": lambda: content(name=["x"]),
    "source is a number": lambda: content(source=3),
    "large file": lambda: content() + " " * calibration.LARGEST,
}


def test_the_content_that_the_bad_ones_differ_from_is_good():
    write(content())
    assert depth.at_hand() == DEVICE


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_what_is_no_calibration_is_ignored_and_then_replaced(monkeypatch, capsys, generic, bad):
    write(bad())
    assert depth.at_hand() == generic
    monkeypatch.setattr(calibration, "measure", lambda: DEVICE)
    assert depth.calibrate() == DEVICE
    assert depth.at_hand() == DEVICE
    assert capsys.readouterr() == ("", "")


def a_folder_for_the_file(path):
    path.mkdir(parents=True)


def a_file_for_the_folder(path):
    path.parent.write_text("")


def a_link_to_itself(path):
    path.parent.mkdir()
    path.symlink_to(path)


def a_folder_that_links_to_itself(path):
    path.parent.symlink_to(path.parent)


def a_link_to_nowhere(path):
    path.parent.mkdir()
    path.symlink_to(path.parent / "nowhere")


def a_pipe(path):
    path.parent.mkdir()
    os.mkfifo(path)


PLACES = [
    a_folder_for_the_file,
    a_file_for_the_folder,
    a_link_to_itself,
    a_folder_that_links_to_itself,
    a_link_to_nowhere,
    a_pipe,
]


@pytest.mark.parametrize("obstacle", PLACES, ids=lambda obstacle: obstacle.__name__)
def test_whatever_is_in_the_files_place_is_no_error(monkeypatch, capsys, generic, obstacle):
    obstacle(calibration.cache_file())
    assert depth.at_hand() == generic
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(calibration, "measure", lambda: DEVICE)
    assert depth.calibrate() == DEVICE
    replaced = "not kept" not in capsys.readouterr().err
    assert replaced == (obstacle in (a_link_to_itself, a_link_to_nowhere, a_pipe))
    assert depth.at_hand() == (DEVICE if replaced else generic)


# -- which device ---------------------------------------------------------------------------------

KINDS = {
    "NVIDIA H200": ("gpu", "H200"),
    "NVIDIA H100 80GB HBM3": ("gpu", "H100"),
    "NVIDIA A100-SXM4-80GB": ("gpu", "A100"),
    "NVIDIA A100-SXM4-40GB": ("gpu", "A100"),
    "Tesla V100-SXM2-32GB": ("gpu", "V100"),
    "TPU v4": ("tpu", "TPU v4"),
    "TPU v5 lite": ("tpu", "TPU v5e"),
    "TPU v5e": ("tpu", "TPU v5e"),
    "TPU v5": ("tpu", "TPU v5p"),
    "TPU v5p": ("tpu", "TPU v5p"),
    "TPU v6 lite": ("tpu", "TPU v6e"),
    "TPU v6e": ("tpu", "TPU v6e"),
}
STRANGE = {
    "NVIDIA A10": "gpu",
    "NVIDIA GeForce RTX 4090": "gpu",
    "NVIDIA GH200 480GB": "gpu",
    "AMD Instinct MI300X": "gpu",
    "TPU v2": "tpu",
    "TPU v4 lite": "tpu",
    "TPU7x": "tpu",
    "": "tpu",
    "trainium": "neuron",
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_accelerator_that_is_published_is_found_by_its_kind(kind):
    platform, name = KINDS[kind]
    assert model_of(Other(platform, kind)) is depth.devices[name]


@pytest.mark.parametrize("kind", STRANGE, ids=repr)
def test_an_accelerator_that_is_not_is_generic(kind):
    assert model_of(Other(STRANGE[kind], kind)) == generic_accelerator(STRANGE[kind])


def test_what_is_measured_comes_before_what_is_published(monkeypatch):
    other = Other("gpu", "NVIDIA H200")
    with monkeypatch.context() as there:
        there.setattr(calibration, "default_device", lambda: other)
        keep(there)
    assert model_of(other) == DEVICE
    assert model_of(Other("gpu", "NVIDIA H200 NVL")) is depth.devices["H200"]  # another device


@pytest.mark.parametrize("platform", ["gpu", "cuda", "rocm", "GPU"])
def test_a_gpu_that_is_not_here_is_generic(platform):
    assert depth.at_hand(platform) == generic_accelerator("gpu")


@pytest.mark.parametrize("platform", ["tpu", "neuron"])
def test_a_platform_that_is_not_here_is_generic(platform):
    assert depth.at_hand(platform) == generic_accelerator(platform)


def test_gpu_cuda_and_rocm_are_one_platform(monkeypatch):
    def local_devices(backend):
        if backend != "gpu":
            raise RuntimeError(f"Unknown backend {backend}")
        return [Other("gpu", "NVIDIA H100 PCIe"), Other("gpu", "NVIDIA H200")]

    monkeypatch.setattr(jax, "local_devices", local_devices)
    assert all(
        depth.at_hand(platform) is depth.devices["H100"] for platform in ("gpu", "cuda", "rocm")
    )
    assert depth.at_hand("cpu") == generic_cpu(calibration.cores())  # a process without one


def test_a_platform_without_a_device_in_this_process_is_generic(monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda backend: [])
    assert depth.at_hand("tpu") == generic_accelerator("tpu")
    with jax.default_device("tpu"):
        assert depth.at_hand() == generic_accelerator("tpu")


def test_without_a_platform_it_is_jaxs_default_device(monkeypatch, generic):
    assert depth.at_hand() == generic
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        monkeypatch.setattr(
            jax,
            "local_devices",
            lambda backend=None: [Other("tpu", {None: "TPU v4", "tpu": "TPU v6e"}[backend])],
        )
        assert depth.at_hand() == generic
    assert depth.at_hand() is depth.devices["TPU v4"]
    with jax.default_device("tpu"):
        assert depth.at_hand() is depth.devices["TPU v6e"]


@pytest.mark.parametrize("platform", [3, b"cpu", ["cpu"], True], ids=repr)
def test_what_is_no_platform_is_refused(platform):
    with pytest.raises(ValueError, match="platform must be a name") as error:
        depth.at_hand(platform)
    assert repr(platform) in str(error.value)


# -- while jax traces -----------------------------------------------------------------------------


def test_it_may_be_asked_while_jax_traces(monkeypatch):
    keep(monkeypatch)
    seen = []

    def program(x):
        seen.append(depth.at_hand())
        return x

    assert jax.make_jaxpr(program)(jnp.ones(3)).eqns == []
    assert seen == [DEVICE]
