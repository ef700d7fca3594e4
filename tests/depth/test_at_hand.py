"""The model of the device at hand, by its kind; nothing is computed."""

import jax
import pytest

import depth
from depth.models import HOISTED, SMALL_LOOP, generic_cpu, model_of
from depth.platforms import cores

IS_NEW = jax.__version_info__ >= (0, 12)  # XLA then compiles larger loops to one function
HERE = generic_cpu(cores()).replace(small_loop=HOISTED if IS_NEW else SMALL_LOOP)


def generic_accelerator(platform):
    name, like = ("TPU", "TPU v5e") if platform == "tpu" else ("GPU", "A100")
    return depth.devices[like].replace(name=f"generic {name}")


class Other:
    """A device that this machine does not have."""

    def __init__(self, platform, device_kind):
        self.platform, self.device_kind = platform, device_kind


@pytest.mark.parametrize("platform", [None, "cpu"], ids=["default", "cpu"])
def test_a_cpu_is_generic(platform):
    assert depth.at_hand(platform) == HERE


def test_the_limit_of_small_loops_is_that_of_the_flag(monkeypatch):
    flag = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold="
    monkeypatch.setenv(
        "XLA_FLAGS", f"{flag}1 --xla_backend_optimization_level=3 {flag}65536,other=2"
    )
    found = depth.at_hand("cpu")
    assert found == HERE.replace(small_loop=65536.0)
    assert depth.at_hand("cpu") is found  # choices are cached by identity
    assert depth.at_hand("tpu").small_loop == 0
    monkeypatch.setenv("XLA_FLAGS", "")
    assert depth.at_hand("cpu") == HERE


KINDS = {
    "NVIDIA H200": ("gpu", "H200"),
    "NVIDIA H100 80GB HBM3": ("gpu", "H100"),
    "NVIDIA A100-SXM4-80GB": ("gpu", "A100"),
    "NVIDIA A100-SXM4-40GB": ("gpu", "A100"),
    "NVIDIA GeForce RTX 4090": ("gpu", "RTX 4090"),
    "AMD Instinct MI300X": ("gpu", "MI300X"),
    "TPU v4": ("tpu", "TPU v4"),
    "TPU v5 lite": ("tpu", "TPU v5e"),
    "TPU v5": ("tpu", "TPU v5p"),
    "TPU v6 lite": ("tpu", "TPU v6e"),
}
STRANGE = {
    "NVIDIA GH200 480GB": "gpu",
    "AMD Instinct MI250X": "gpu",
    "TPU v4 lite": "tpu",
    "": "tpu",
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_accelerator_that_is_published_is_found_by_its_kind(kind):
    platform, name = KINDS[kind]
    assert model_of(Other(platform, kind)) is depth.devices[name]


@pytest.mark.parametrize("kind", STRANGE, ids=repr)
def test_an_accelerator_that_is_not_is_generic(kind):
    assert model_of(Other(STRANGE[kind], kind)) == generic_accelerator(STRANGE[kind])


@pytest.mark.parametrize("platform", ["gpu", "cuda", "rocm", "GPU", "tpu", "neuron"])
def test_a_platform_that_is_not_here_is_generic(platform):
    assert depth.at_hand(platform) == generic_accelerator(platform)


def test_gpu_cuda_and_rocm_are_one_platform(monkeypatch):
    def local_devices(backend):
        if backend != "gpu":
            raise RuntimeError(f"Unknown backend {backend}")
        return [Other("gpu", "NVIDIA H100 PCIe"), Other("gpu", "NVIDIA H200")]

    monkeypatch.setattr(jax, "local_devices", local_devices)
    assert {depth.at_hand(name).name for name in ("gpu", "cuda", "rocm")} == {"H100"}
    assert depth.at_hand("cpu") == HERE  # a process without one


def test_a_platform_without_a_device_in_this_process_is_generic(monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda backend: [])
    assert depth.at_hand("tpu") == generic_accelerator("tpu")
    with jax.default_device("tpu"):
        assert depth.at_hand() == generic_accelerator("tpu")


def test_without_a_platform_it_is_jaxs_default_device(monkeypatch):
    assert depth.at_hand() == HERE
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        monkeypatch.setattr(
            jax,
            "local_devices",
            lambda backend=None: [Other("tpu", {None: "TPU v4", "tpu": "TPU v6e"}[backend])],
        )
        assert depth.at_hand() == HERE
    assert depth.at_hand() is depth.devices["TPU v4"]
    with jax.default_device("tpu"):
        assert depth.at_hand() is depth.devices["TPU v6e"]


@pytest.mark.parametrize("platform", [3, b"cpu", ["cpu"], True], ids=repr)
def test_what_is_no_platform_is_refused(platform):
    with pytest.raises(ValueError, match="platform must be a name") as error:
        depth.at_hand(platform)
    assert repr(platform) in str(error.value)
