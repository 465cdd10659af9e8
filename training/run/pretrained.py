"""Initial weights: published ones for the encoder, or those of a model trained before."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor, nn

from geoprep.errors import UsageError
from geoprep.imagery.band_names import partner_bands
from training.checkpoint import BEST, Checkpoint, load, load_weights, trusted
from training.model.build import RESNET34_UNET, SMP, UNET_SMALL, ModelInfo, smp_factory
from training.settings import Config

SYNTHETIC = Path(__file__).with_name("synthetic.pt")
"""An `unet-small` of synthetic cities with pixels of 1.1 m, at most 4.5 MB (`make synthetic`)."""

IMAGENET_URL = "https://download.pytorch.org/models/resnet34-b627a593.pth"
"""torchvision's ResNet34_Weights.IMAGENET1K_V1; the name ends in the start of its SHA-256."""

_STEM = "conv1.weight"
_PUBLISHED = ("red", "green", "blue")
_CLASSIFIER = ("fc.weight", "fc.bias")
_PREFIXES = ("module.", "encoder.", "backbone.")


def choose_model(config: Config, kind: str) -> tuple[Config, str]:
    """Return settings with a model by name, for a kind of device, and why `auto` chose it."""
    if config.model != "auto":
        return config, ""
    if config.init_from is not None and config.init_from != "auto":
        source = _initial_file(config.init_from)
        model, why = trusted(load(source).info.model, None, str(source)), "that of `init_from`"
    elif config.encoder_weights != "none":
        model, why = RESNET34_UNET, "for `encoder_weights`"
    else:
        small = kind == "cpu"
        model, why = UNET_SMALL if small else RESNET34_UNET, f"for a {kind} device"
    return replace(config, model=model), f"`model` auto, {why}"


def _initial_file(source: str) -> Path:
    path = SYNTHETIC if source == "synthetic" else Path(source)
    return path / BEST if (path / BEST).exists() else path


def first_weights(
    model: nn.Module, info: ModelInfo, config: Config, saved: Checkpoint | None
) -> str:
    """Load the weights that a run begins with; return a line on those of a new run."""
    if saved is not None:
        load_weights(model, saved.model, str(config.resume))
        return ""
    if config.encoder_weights != "none":
        return load_encoder_weights(model, config.encoder_weights, config.model, info.bands)
    source = config.init_from
    if source == "auto":  # real roads gained 0.11 to 0.16 IoU, two of five sets of classes lost
        coloured = len(info.bands) == 3 and not partner_bands(_PUBLISHED, info.bands)[1]
        suits = info.model == UNET_SMALL and coloured and not info.has_classes
        source = "synthetic" if suits else None
    return "random weights" if source is None else load_initial_weights(model, info, source)


def load_encoder_weights(
    model: nn.Module, source: str, spec: str = "", names: Sequence[str] = ()
) -> str:
    """Load weights into the encoder of a model; return a line that describes them.

    Published weights are for red, green and blue, which get the kernels of the bands with these
    ``names``. Others are repeated band by band, and all are scaled by 3 / bands, which keeps the
    magnitude of the output of the first convolution; for one band they are summed.
    """
    encoder = getattr(model, "encoder", None)
    if source == "imagenet" and spec.startswith(SMP) and isinstance(encoder, nn.Module):
        return _load_smp_weights(encoder, spec, len(next(encoder.parameters())[0]), names)
    if not isinstance(encoder, nn.Module) or _STEM not in encoder.state_dict():
        raise UsageError(
            "encoder_weights",
            f"{source}: this model has no encoder named like torchvision's "
            "ResNet; load weights in its factory, and use none here",
        )
    weights = _state_dict(_download() if source == "imagenet" else _read(source))
    if _STEM not in weights:
        raise UsageError(
            "encoder_weights",
            f"{source} has no {_STEM}: give a state dictionary of ResNet34 "
            "with torchvision's names",
        )
    bands, given = encoder.state_dict()[_STEM].shape[1], weights[_STEM].shape[1]
    kernels, lacking = partner_bands(
        names or [""] * bands, _PUBLISHED if given == len(_PUBLISHED) else [""] * given
    )
    weights[_STEM] = adapt_bands(weights[_STEM], bands, kernels)
    try:
        missing, unknown = encoder.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        detail = str(error).strip().splitlines()[-1].strip()
        raise UsageError("encoder_weights", f"{source} is not of a ResNet34: {detail}") from error
    # Weights from before torch 0.4.1 have no such counters.
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unknown:
        raise UsageError(
            "encoder_weights",
            f"{source} is not of a ResNet34: {len(missing)} parameters missing, "
            f"{len(unknown)} unknown, such as {[*missing, *unknown][0]}",
        )
    adapted = "" if given == bands else f", first convolution adapted from {given} to {bands} bands"
    return f"encoder from {source}{adapted}{_without(lacking)}"


def _load_smp_weights(encoder: nn.Module, spec: str, bands: int, names: Sequence[str]) -> str:
    """Load the weights of segmentation_models_pytorch, which adapts them to the bands itself."""
    try:
        with torch.random.fork_rng(devices=()):
            made = smp_factory(spec, "imagenet")(bands=bands, channels=1)
        weights = made.get_submodule("encoder").state_dict()
        kernels, lacking = partner_bands(names or [""] * bands, _PUBLISHED)
        stem = next((name for name, value in weights.items() if value.ndim == 4), "")
        if bands >= len(_PUBLISHED) and stem:  # of fewer bands it has not all of the kernels
            weights[stem] = weights[stem][:, kernels]
        encoder.load_state_dict(weights)
    except UsageError:
        raise
    except Exception as error:  # a download, or an encoder without such weights
        raise UsageError(
            "encoder_weights",
            f"imagenet: segmentation_models_pytorch has none for {spec} or "
            f"cannot download them ({error}); use none",
        ) from error
    read = f"{bands} bands{_without(lacking)}"
    return f"encoder from imagenet by segmentation_models_pytorch, for {read}"


def load_initial_weights(model: nn.Module, info: ModelInfo, source: str) -> str:
    """Load every weight of a trained model that fits; return a line that describes them.

    The source ``synthetic`` is `SYNTHETIC`. Weights fit if name and shape agree. The first
    convolution is adapted to other bands, see `adapt_bands`. The output layer is left out if
    targets, channels or classes differ.
    """
    path = _initial_file(source)
    saved = load(path)
    given, own = saved.ema or saved.model, model.state_dict()
    meaning = attrgetter("targets", "channels", "class_names")  # of the channels
    same_targets = meaning(saved.info) == meaning(info)
    bands = len(saved.info.bands), len(info.bands)
    head = () if same_targets else _output_weights(given)
    kept, adapted = {}, ""
    kernels, lacking = partner_bands(info.bands, saved.info.bands)
    first = next((name for name, value in given.items() if value.ndim == 4), "")
    for name, value in given.items():
        wanted = own.get(name)
        if wanted is None or name in head:
            continue
        if (value.shape != wanted.shape or name == first) and _reads_bands(value, wanted, bands):
            if bands[0] != bands[1]:
                adapted = f", first convolution adapted from {bands[0]} to {bands[1]} bands"
            value = adapt_bands(value, bands[1], kernels)
        if value.shape == wanted.shape:
            kept[name] = value
    if not any(name in kept for name, _ in model.named_parameters()):
        raise UsageError(
            "init_from",
            f"{source}: no weight of {saved.info.model} fits {info.model}: give a run "
            "of the same model",
        )
    model.load_state_dict(kept, strict=False)
    names = [name for name, _ in model.named_parameters()]
    left = [name for name in names if name not in kept]
    origin = "synthetic cities" if path == SYNTHETIC else path
    line = f"{len(names) - len(left)} of {len(names)} weights from {origin}{adapted}"
    if left:
        parts = sorted({name.split(".")[0] for name in left})
        why = "" if same_targets else f" (its targets are {saved.info.targets})"
        line += f"; at random: {len(left)} of {', '.join(parts)}{why}"
    return line + _without(lacking)


def _without(bands: Sequence[str]) -> str:
    """Return a text on bands that have no kernel of their name."""
    return f"; no kernel of its name for {', '.join(bands)}" if bands else ""


def _output_weights(given: dict[str, Tensor]) -> list[str]:
    """Return the names of the weights that make the channels: the last kernel, and what follows."""
    names = [*given]
    kernels = [number for number, name in enumerate(names) if given[name].ndim > 1]
    return names[max(kernels, default=0) :]


def _reads_bands(given: Tensor, wanted: Tensor, bands: tuple[int, int]) -> bool:
    """Return whether two kernels differ only in that they read the bands of two images."""
    shapes = [(*kernel.shape[:1], *kernel.shape[2:]) for kernel in (given, wanted)]
    read = tuple(kernel.shape[1] for kernel in (given, wanted) if kernel.ndim == 4)
    return shapes[0] == shapes[1] and read == bands


def adapt_bands(kernel: Tensor, bands: int, kernels: Sequence[int]) -> Tensor:
    """Return the kernel of a first convolution for other bands, from given ones by their place."""
    given = kernel.shape[1]
    if bands == 1 < given:
        return kernel.sum(dim=1, keepdim=True)
    return kernel[:, [*kernels]] * (given / bands)


def _state_dict(content: dict[str, Any]) -> dict[str, Tensor]:
    """Return the state dictionary inside a file, without prefixes and classifier."""
    inner = (content.get(key) for key in ("state_dict", "model"))
    content = next((part for part in inner if isinstance(part, dict)), content)
    weights = {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
    for prefix in _PREFIXES:
        inside = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        weights = inside or weights
    return {name: value for name, value in weights.items() if name not in _CLASSIFIER}


def _download() -> dict[str, Any]:
    try:
        return torch.hub.load_state_dict_from_url(
            IMAGENET_URL, map_location="cpu", check_hash=True, progress=False, weights_only=True
        )
    except (URLError, OSError, RuntimeError) as error:
        raise UsageError(
            "encoder_weights",
            f"imagenet: cannot download {IMAGENET_URL} ({error}); download it "
            "elsewhere and give the file, or use none",
        ) from error


def _read(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise UsageError("encoder_weights", f"{path}: no such file; use imagenet, none or a file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UsageError(
            "encoder_weights",
            f"{path} is not a file of plain tensors; save a state dictionary with torch.save",
        ) from error
    if not isinstance(content, dict):
        raise UsageError("encoder_weights", f"{path} holds no state dictionary")
    return content
