"""Preparation of batches on the device: normalised image, training target and valid mask.

At most one byte per value crosses the bus; floating point is used here only. Everything is plain
tensor arithmetic, so the same modules run on ``cpu``, ``cuda`` and ``xpu``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from geoprep.errors import UsageError
from geoprep.speed import NODATA
from loaders.batch import Batch
from loaders.selection import Readers, Stores, band_places, common_classes, open_stores
from loaders.targets import ClassTarget, SpeedTarget, Targets

Augmentation = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Image uint8 (n, band, y, x), label uint8 (n, y, x) and key int64 (n,) -> image and label."""

PAD_TO = 32
"""Sides of whole tiles are padded to a multiple of this: a ResNet encoder halves five times."""

_M32 = 0xFFFFFFFF


class BandStatistics(NamedTuple):
    """Mean and standard deviation of each band over valid pixels, float64 (band,)."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]


class Prepared(NamedTuple):
    """Result of `DevicePrep`.

    Attributes
    ----------
    image
        (n, band, y, x) in channels-last order, normalised.
    target
        Training target; shape and dtype depend on its kind, see `SpeedTarget` and `ClassTarget`.
    valid
        bool (n, y, x), where the target is known; False on padding.
    """

    image: Tensor
    target: Tensor
    valid: Tensor


def band_statistics(stores: Readers, bands: Sequence[str] | None = None) -> BandStatistics:
    """Return mean and standard deviation of the valid pixels of the train splits.

    Stores contain pixel counts, which are added up over stores, so the result is exact.

    Parameters
    ----------
    stores
        Opened stores.
    bands
        Names of the bands, in this order; None for those of the first store.

    Raises
    ------
    UsageError
        A store lacks a band, or its train split has no valid pixel.
    """
    names = tuple(stores[0].meta.bands if bands is None else bands)
    counts = np.zeros((len(names), 256))
    for store in stores:
        counts += store.histogram_band[band_places(store, names)]
    total = counts.sum(axis=1)
    if not total.all():
        for store in stores:
            store.check_labels()
        where = ", ".join(store.location for store in stores)
        raise UsageError(
            f"{where}: the train split has no valid pixels to compute mean and standard deviation "
            "from. Give DevicePrep a Normalize with known statistics"
        )
    value = np.arange(256)
    mean = counts @ value / total
    variance = (counts * (value - mean[:, None]) ** 2).sum(axis=1) / total
    return BandStatistics(mean, np.sqrt(variance))


class Normalize(nn.Module):
    """Normalises uint8 images: (value - mean) / std per band in fp32, rounded once to the dtype.

    Parameters
    ----------
    mean, std
        One number per band, in grey values. A band with std 0 is only centred.
    dtype
        Dtype of the result: ``torch.float32``, ``torch.bfloat16``, ...
    """

    centre: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        mean: Sequence[float] | NDArray[np.float64],
        std: Sequence[float] | NDArray[np.float64],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.dtype = dtype
        means, stds = (np.asarray(v, np.float64) for v in (mean, std))
        scale = 1.0 / np.where(stds > 0, stds, 1.0)
        # The rounded mean is subtracted exactly, so that values near it lose no digits.
        whole = np.round(means)
        values = {"centre": whole, "scale": scale, "shift": (whole - means) * scale}
        for name, value in values.items():
            tensor = torch.tensor(value, dtype=torch.float32).view(1, -1, 1, 1)
            self.register_buffer(name, tensor)

    def forward(
        self, image: Tensor, gain: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Return the normalised image, in the memory order of the input.

        Parameters
        ----------
        image
            uint8 (n, band, y, x).
        gain, bias
            (n, band, 1, 1), factor and summand in normalised units, see `Jitter`; None for none.
        """
        scale, shift = self.scale, self.shift
        if gain is not None:
            scale, shift = scale * gain, shift * gain
        if bias is not None:
            shift = shift + bias
        if image.is_cuda:  # three kernels in place of five take half the time (H100)
            return torch.addcmul(shift, image - self.centre, scale).to(self.dtype)
        value = image.to(torch.float32, copy=True)
        parts = [value, self.centre, scale, shift]
        last = value.is_contiguous(memory_format=torch.channels_last)
        if self.training and last and value.device.type == "cpu":
            # Rows of all bands: loops over the few bands of a pixel take torch six times as long.
            # In training only: a graph that is traced must not depend on the memory order.
            rows = (p.permute(0, 2, 3, 1).expand(-1, -1, image.shape[3], -1) for p in parts)
            parts = [row.flatten(2) for row in rows]
        pixels, centre, scale, shift = parts
        # In place, and not `image - centre`: mixed dtypes take torch a third more time (measured).
        pixels.sub_(centre).mul_(scale).add_(shift)
        return value.to(self.dtype)

    def extra_repr(self) -> str:
        """Return the settings for the repr of this module."""
        return f"bands={self.centre.shape[1]}, dtype={self.dtype}"


def unit_hash(key: Tensor, stream: int) -> Tensor:
    """Return fp32 in [0, 1) per key: Wellons' "lowbias32" in int64, which all devices support."""
    x = ((key ^ (key >> 32)) + stream * 0x9E3779B9) & _M32
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _M32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _M32
    return (x ^ (x >> 16)).bitwise_right_shift(8).to(torch.float32) * 2.0**-24


class Jitter(nn.Module):
    """Random brightness, contrast and band gain, in units of a band's standard deviation.

    It takes no extra time: it changes two numbers per sample and band of the normalisation. They
    are hashed from the key of the sample, and thus a function of (seed, epoch, position) like its
    crop, the same on any device.

    A pixel ``v`` of a normalised band becomes ``v * contrast * gain + brightness``: contrast and
    brightness are one draw per sample, gain one per sample and band.

    Parameters
    ----------
    brightness
        Summand is within +- this many standard deviations, at least 0.
    contrast, gain
        Factor is within 1 +- this, 0 to below 1.

    Raises
    ------
    UsageError
        A value is out of range.
    """

    def __init__(self, brightness: float = 0.2, contrast: float = 0.2, gain: float = 0.05) -> None:
        super().__init__()
        if brightness < 0 or not (0 <= contrast < 1 and 0 <= gain < 1):
            raise UsageError(
                f"brightness={brightness} must be at least 0, contrast={contrast} and gain={gain} "
                "within 0..1"
            )
        self.brightness = brightness
        self.contrast = contrast
        self.gain = gain

    def forward(self, key: Tensor, bands: int) -> tuple[Tensor, Tensor]:
        """Return gain and bias of each sample and band, fp32 (n, band, 1, 1).

        Parameters
        ----------
        key
            int64 (n,), `Batch.key`.
        bands
            Number of bands.
        """
        gains = torch.stack([unit_hash(key, 2 + band) for band in range(bands)], dim=1)
        gain = 1 + self.gain * (2 * gains - 1)
        gain = gain * (1 + self.contrast * (2 * unit_hash(key, 0)[:, None] - 1))
        bias = (self.brightness * (2 * unit_hash(key, 1) - 1))[:, None].expand_as(gain)
        return gain[:, :, None, None], bias[:, :, None, None]


class DevicePrep(nn.Module):
    """Turns a batch of bytes into normalised image, target and valid mask.

    Parameters
    ----------
    normalize
        Normalisation of the image.
    target
        Target from the label.
    jitter
        Random brightness, contrast and gain, in training mode only; None for none.
    augmentation
        Function of image, label and key, such as `DeviceAugmentation`, that returns image and
        label, in training mode only; None for none.
    pad_to
        Sides are padded to a multiple of this, at the bottom and to the right: the image by
        reflection, as predictions are at their edges; the label with nodata, which is not valid.
        1 for no padding.
    """

    def __init__(
        self,
        normalize: Normalize,
        target: SpeedTarget | ClassTarget,
        *,
        jitter: Jitter | None = None,
        augmentation: Augmentation | None = None,
        pad_to: int = PAD_TO,
    ) -> None:
        super().__init__()
        self.normalize = normalize
        self.target = target
        self.jitter = jitter
        self.augmentation = augmentation
        self.pad_to = pad_to

    @classmethod
    def from_store(
        cls,
        stores: Stores,
        targets: Targets | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        bands: Sequence[str] | None = None,
        jitter: Jitter | None = None,
        augmentation: Augmentation | None = None,
        pad_to: int = PAD_TO,
    ) -> DevicePrep:
        """Return a module with the statistics of a store, or of several together.

        Parameters
        ----------
        stores
            One store or several: opened, local paths or addresses.
        targets
            Kind of target, see `SpeedTarget`; None for ``bins``, or ``classes`` if the labels of
            the stores hold classes, see `ClassTarget`.
        dtype
            Dtype of image and target.
        bands
            Names of the bands that were loaded; None for all.
        jitter, augmentation, pad_to
            See `DevicePrep`.

        Raises
        ------
        StoreError
            A store cannot be used.
        UsageError
            A store lacks a band, its train split has no valid pixel, its labels are of another
            kind than ``targets``, or its roads have no speeds and ``targets`` needs them.
        """
        opened = open_stores(stores)
        classes = common_classes(opened)
        if targets is None:
            targets = "classes" if classes else "bins"
        if bool(classes) != (targets == "classes"):
            where = ", ".join(store.location for store in opened)
            kind, fix = ("classes", "classes") if classes else ("speeds", "bins")
            raise UsageError(
                "targets", f"{targets}: the labels of {where} hold {kind}: use `targets` {fix}"
            )
        target = ClassTarget(len(classes)) if classes else SpeedTarget(targets, dtype)
        without = [store.location for store in opened if not store.has_speeds]
        if without and target.targets not in ("binary", "classes"):
            raise UsageError(
                "targets",
                f"{target.targets} needs speeds, but the roads of {', '.join(without)} "
                "have none (such as roads of masks or areas): use `targets` binary, or build the "
                "store from labels with speeds",
            )
        return cls(
            Normalize(*band_statistics(opened, bands), dtype),
            target,
            jitter=jitter,
            augmentation=augmentation,
            pad_to=pad_to,
        )

    def forward(self, batch: Batch | Mapping[str, Any]) -> Prepared:
        """Return image, target and valid mask of a batch on the device of this module.

        Parameters
        ----------
        batch
            A `Batch`, or a mapping with ``image`` and ``speed``, or ``label`` for classes (and
            ``key`` for jitter and augmentation).

        Raises
        ------
        UsageError
            The labels hold classes and the target is of speeds, or the reverse.
        """
        if isinstance(batch, Mapping):
            has_classes = "label" in batch
            image, label = batch["image"], batch["label" if has_classes else "speed"]
        else:
            has_classes, image, label = batch.has_classes, batch.image, batch.label
        if has_classes != (self.target.targets == "classes"):
            kind, fix = ("classes", "'classes'") if has_classes else ("speeds", "'bins'")
            raise UsageError(
                f"the labels of this batch hold {kind}, the target is {self.target.targets}: use a "
                f"prep with targets={fix}"
            )
        changed = self.training and (self.jitter or self.augmentation) is not None
        key = (batch["key"] if isinstance(batch, Mapping) else batch.key) if changed else None
        if key is not None and self.augmentation is not None:
            image, label = self.augmentation(image, label, key)
        image, label = self.pad(image), self._pad_label(label)
        varied = ()
        if key is not None and self.jitter is not None:
            varied = self.jitter(key, image.shape[1])
        image = self.normalize(image, *varied)
        return Prepared(image, self.target(label), self.target.valid(label))

    def pad(self, image: Tensor) -> Tensor:
        """Return uint8 (n, band, y, x) with sides padded to multiples of ``pad_to`` by reflection.

        The edge is not repeated, as in NumPy's ``reflect``; an image smaller than its padding is
        reflected several times. An image that needs no padding is returned as it is, others in
        channels-last order.
        """
        pixels = image.permute(0, 2, 3, 1)
        for axis in (1, 2):
            side = pixels.shape[axis]
            if side % self.pad_to:
                at = torch.arange(side + -side % self.pad_to, device=image.device)
                at %= max(1, 2 * side - 2)  # to the opposite edge and back
                pixels = pixels.index_select(axis, torch.minimum(at, (2 * side - 2 - at).abs()))
        return pixels.permute(0, 3, 1, 2)

    def _pad_label(self, label: Tensor) -> Tensor:
        """Return a label padded with nodata."""
        below, right = (-side % self.pad_to for side in label.shape[-2:])
        if not below and not right:
            return label
        return functional.pad(label, (0, right, 0, below), value=NODATA)
