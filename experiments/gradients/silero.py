"""The speech detector of silero-vad (MIT), with the weights from its wheel, read by numpy.

Its input is sound of 16 kHz in frames of 512 samples, each preceded by the last 64 of the frame
before. A short-time Fourier transform and four convolutions map each frame to 128 numbers, an LSTM
of 128 units carries them through time, and an affine map of its output is the logit of the
probability of speech. So all but the LSTM is parallel over frames anyway, and the LSTM is a chain.
The layers are those of the wheel's own `tinygrad_model.py`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from experiments.models.data import find_package

RATE, FRAME, CONTEXT = 16_000, 512, 64  # samples
WINDOW, HOP = 256, 128  # of the Fourier transform
STRIDES = (1, 2, 2, 1)
FILE = "data/silero_vad_16k.safetensors"

Arrays = Mapping[str, np.ndarray]
"""The network's weights by name, float32."""


def read_weights(at: str | Path | None = None) -> Arrays | None:
    """The weights; None where silero-vad is not installed, nor in ``at``, a wheel or folder."""
    package = find_package("silero_vad", at)
    return None if package is None else read_safetensors((package / FILE).read_bytes())


def read_safetensors(data: bytes) -> Arrays:
    """The float32 arrays of a safetensors file, by name.

    The format: eight bytes with the length of a JSON header, the header, the numbers.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:start])
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f"{name} is of type {entry['dtype']}, expected F32.")
        begin, end = (start + offset for offset in entry["data_offsets"])
        arrays[name] = np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])
    return arrays


def lstm_weights(arrays: Arrays) -> dict[str, Array]:
    """The weights of the LSTM, in the form of `cells.lstm`."""
    found = {"W": arrays["lstm_cell.weight_ih"].T, "U": arrays["lstm_cell.weight_hh"].T}
    found["b"] = arrays["lstm_cell.bias_ih"] + arrays["lstm_cell.bias_hh"]
    return {name: jnp.asarray(value) for name, value in found.items()}


def features(arrays: Arrays, sound: np.ndarray) -> Array:
    """The inputs of the LSTM, ``[frames, 128]``, for ``sound: [samples]`` at 16 kHz.

    Samples after the last full frame are dropped.
    """
    count = len(sound) // FRAME
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), sound.astype(np.float32)])
    frames = padded[np.arange(count)[:, None] * FRAME + np.arange(CONTEXT + FRAME)[None]]
    frames = np.pad(frames, ((0, 0), (0, CONTEXT)), mode="reflect")
    return jax.jit(_encode)(arrays, jnp.asarray(frames)[:, None])


def _encode(arrays: Mapping[str, Array], x: Array) -> Array:
    """``[frames, 1, samples] -> [frames, 128]``."""
    spectrum = _convolve(x, arrays["stft_conv.weight"], HOP, 0)
    half = WINDOW // 2 + 1
    x = jnp.sqrt(spectrum[:, :half] ** 2 + spectrum[:, half:] ** 2)
    for number, stride in enumerate(STRIDES, 1):
        x = _convolve(x, arrays[f"conv{number}.weight"], stride, 1)
        x = jax.nn.relu(x + arrays[f"conv{number}.bias"][None, :, None])
    return x[..., 0]


def _convolve(x: Array, weight: Array, stride: int, pad: int) -> Array:
    axes = ("NCH", "OIH", "NCH")
    return lax.conv_general_dilated(
        x, weight, (stride,), [(pad, pad)], dimension_numbers=axes, precision=lax.Precision.HIGHEST
    )


def probabilities(arrays: Arrays, h: Array) -> Array:
    """The probability of speech in every frame, from the LSTM's output ``h: [frames, 128]``."""
    return jax.nn.sigmoid(
        jax.nn.relu(h) @ arrays["final_conv.weight"][0] + arrays["final_conv.bias"][None]
    )[:, 0]


def make_sound(seconds: float, seed: int = 0) -> np.ndarray:
    """Synthetic speech, float32 from -1 to 1: syllables of a gliding voice, pauses, a little noise.

    Three resonances, drawn for every syllable, weight the overtones of the voice.
    """
    rng = np.random.default_rng(seed)
    count = int(seconds * RATE)
    sound = 0.003 * rng.standard_normal(count).astype(np.float32)
    start = 0
    while start < count:
        length = min(int(rng.uniform(0.12, 0.35) * RATE), count - start)
        sound[start : start + length] += _syllable(length, rng)
        pause = rng.uniform(0.4, 1.5) if rng.random() < 0.15 else rng.uniform(0.01, 0.08)
        start += length + int(pause * RATE)
    return sound


def _syllable(length: int, rng: np.random.Generator) -> np.ndarray:
    begin, end = rng.uniform(90, 220, 2)
    pitch = np.linspace(begin, end, length)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    resonances = rng.uniform((300, 900, 2200), (800, 2200, 3200))
    voice = np.zeros(length)
    for overtone in range(1, 25):
        distance = (overtone * pitch.mean() - resonances) / (80, 120, 200)
        voice += np.exp(-0.5 * distance**2).sum() / overtone**0.5 * np.cos(overtone * phase)
    return (0.2 * np.sin(np.pi * np.linspace(0, 1, length)) * voice).astype(np.float32)
