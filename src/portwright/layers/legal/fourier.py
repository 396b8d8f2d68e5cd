"""Fourier transforms of a fixed small size, as matrix products with cosines and sines.

The target has no complex numbers: a spectrum is a pair of tensors, its real and its imaginary part. The cost grows with the
square of the size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from portwright.layers.legal.windows import unfold_dimension

__all__ = [
    "fft_parts", "ifft_parts", "irfft_parts", "magnitude", "power_spectrum", "rfft_parts", "stft_parts",
]  # fmt: skip


def rfft_parts(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None
) -> tuple[Tensor, Tensor]:
    """torch.fft.rfft(input, n, dim, norm), as its real and imaginary part."""
    values = _resize(input.movedim(dim, -1), n)
    size = values.shape[-1]
    cosine, sine = _waves(size, size // 2 + 1, values)
    scale = _scale(size, norm, forward=True)
    real, imag = torch.matmul(values, cosine) * scale, torch.matmul(values, sine) * -scale
    return real.movedim(-1, dim), imag.movedim(-1, dim)


def irfft_parts(
    real: Tensor, imag: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None
) -> Tensor:
    """torch.fft.irfft(torch.complex(real, imag), n, dim, norm)."""
    size = 2 * (real.shape[dim] - 1) if n is None else n
    if size < 1:
        raise RuntimeError(f"irfft gives at least one value, not {size}")
    kept = size // 2 + 1
    real, imag = _resize(real.movedim(dim, -1), kept), _resize(imag.movedim(dim, -1), kept)
    cosine, sine = _waves(size, kept, real)
    at = torch.arange(kept, device=real.device)
    single = (at == 0) | (at == size / 2)  # every other frequency stands for its mirror image too
    weight = torch.where(single, 1.0, 2.0).to(real.dtype)
    scale = _scale(size, norm, forward=False)
    result = torch.matmul(real * weight, cosine.t()) - torch.matmul(imag * weight, sine.t())
    return (result * scale).movedim(-1, dim)


def fft_parts(
    real: Tensor, imag: Tensor | None = None, n: int | None = None, dim: int = -1, norm: str | None = None
) -> tuple[Tensor, Tensor]:
    """torch.fft.fft of real + i imag, as its real and imaginary part."""
    return _complex(real, imag, n, dim, norm, forward=True)


def ifft_parts(
    real: Tensor, imag: Tensor | None = None, n: int | None = None, dim: int = -1, norm: str | None = None
) -> tuple[Tensor, Tensor]:
    """torch.fft.ifft of real + i imag, as its real and imaginary part."""
    return _complex(real, imag, n, dim, norm, forward=False)


def power_spectrum(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """torch.fft.rfft(input, n, dim, norm).abs() ** 2."""
    real, imag = rfft_parts(input, n, dim, norm)
    return real * real + imag * imag


def magnitude(real: Tensor, imag: Tensor) -> Tensor:
    """torch.complex(real, imag).abs(), with a gradient of zero at zero, as there."""
    square = real * real + imag * imag
    empty = square == 0
    root = torch.where(empty, torch.ones_like(square), square).sqrt()
    return torch.where(empty, torch.zeros_like(root), root)


def stft_parts(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
) -> tuple[Tensor, Tensor]:
    """torch.stft(..., onesided=True, return_complex=True) of real input, as real and imaginary part (..., bins, frames)."""
    from portwright.layers.legal.padding import pad

    if center:
        flat = input.reshape(1, -1, input.shape[-1]) if input.dim() != 3 else input
        flat = pad(flat, (n_fft // 2, n_fft // 2), pad_mode)
        input = flat.reshape(*input.shape[:-1], flat.shape[-1])
    frames = unfold_dimension(input, -1, n_fft, n_fft // 4 if hop_length is None else hop_length)
    if window is not None:
        if window.shape != (n_fft,):
            raise RuntimeError(f"the window has the shape {tuple(window.shape)}, not ({n_fft},)")
        frames = frames * window
    real, imag = rfft_parts(frames, norm="ortho" if normalized else None)
    return real.transpose(-1, -2), imag.transpose(-1, -2)


def _complex(
    real: Tensor, imag: Tensor | None, n: int | None, dim: int, norm: str | None, forward: bool
) -> tuple[Tensor, Tensor]:
    real = _resize(real.movedim(dim, -1), n)
    size = real.shape[-1]
    cosine, sine = _waves(size, size, real)
    sine = -sine if forward else sine
    scale = _scale(size, norm, forward)
    out_real, out_imag = torch.matmul(real, cosine), torch.matmul(real, sine)
    if imag is not None:
        imag = _resize(imag.movedim(dim, -1), n)
        out_real = out_real - torch.matmul(imag, sine)
        out_imag = out_imag + torch.matmul(imag, cosine)
    return (out_real * scale).movedim(-1, dim), (out_imag * scale).movedim(-1, dim)


def _waves(size: int, num_bins: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi t f / size as (size, num_bins); t f is taken modulo the size first, to keep the angle small."""
    time = torch.arange(size, device=like.device).unsqueeze(1)
    bins = torch.arange(num_bins, device=like.device).unsqueeze(0)
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    turn = torch.remainder(time * bins, size).to(dtype)
    angle = turn * (2.0 * math.pi / size)
    return torch.cos(angle).to(like.dtype), torch.sin(angle).to(like.dtype)


def _resize(values: Tensor, n: int | None) -> Tensor:
    if n is None or n == values.shape[-1]:
        return values
    if n < 1:
        raise RuntimeError(f"a transform has at least one point, not {n}")
    if n < values.shape[-1]:
        return values[..., :n]
    return torch.nn.functional.pad(values, (0, n - values.shape[-1]))


def _scale(size: int, norm: str | None, forward: bool) -> float:
    if norm not in (None, "backward", "ortho", "forward"):
        raise RuntimeError(f"norm is backward, ortho or forward, not {norm!r}")
    if norm == "ortho":
        return 1.0 / math.sqrt(size)
    return 1.0 / size if (norm == "forward") == forward else 1.0
