"""The parts of a run, from its settings: data, module, loss, optimizer, loaders."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import loaders
from geoprep.errors import UsageError
from geoprep.speed import CHANNEL_TABLE, VALID_TABLE
from geoprep.store.reader import StoreReader
from training.checkpoint import Checkpoint
from training.data import (
    Stores,
    class_pixels,
    count_fold,
    count_tiles,
    folds_of,
    model_info,
    tiles_of,
    with_counts,
)
from training.engine.distributed import max_over_ranks, on_rank_zero
from training.engine.native import Engine
from training.model.build import ModelInfo, build_model, imported
from training.model.compiled import copy_no_kernels, fuse_norms
from training.model.losses import ClassLoss, RoadLoss
from training.model.trainable import Trainable
from training.model.unet import UNet, set_prior
from training.setting_texts import Stage, parse_shares
from training.settings import Config, SamplingConfig

_MANY_PIXELS, _CUTMIX = 4e6, 0.5
"""Boxes of other samples where classes have fewer labelled pixels, which are learnt by heart: they
gain after eight minutes with 992 to 3 million pixels, and not with 4.3 and 6 (real imagery)."""

_LARGEST = 5.0
"""Largest weight of a channel or class over that of the most common one."""


def open_data(config: Config) -> tuple[StoreReader, ...]:
    """Return the opened stores of a run; their histograms count its training scenes."""
    stores = loaders.open_stores(config.stores)
    folds = folds_of(config)
    if folds is None:
        return stores
    counts = on_rank_zero(lambda: [count_fold(store, folds) for store in stores])
    return tuple(with_counts(*pair) for pair in zip(stores, counts, strict=True))


def info_of(config: Config, stores: Stores) -> ModelInfo:
    """Return inputs and outputs of the model that a run trains, for the finest level."""
    return model_info(
        stores,
        model=config.model,
        targets=config.targets,
        bands=config.bands,
        folds=folds_of(config),
    )


def make_trainable(config: Config, info: ModelInfo, engine: Engine, stores: Stores) -> Trainable:
    """Return an untrained model with its normalisation and loss, on the CPU in fp32."""
    model = build_model(info.model, bands=len(info.bands), channels=info.channels)
    share = None
    if info.targets != "binary":
        share = class_share(stores, info.class_names) if info.has_classes else channel_share(stores)
        set_prior(model, share, exclusive=info.has_classes)
    elif config.class_weights == "auto":
        raise UsageError("class_weights", "auto needs labels of classes, or of speeds")
    weights = None if share is None or config.class_weights == "none" else inverse_root(share)
    loss = (ClassLoss if info.has_classes else RoadLoss)(config.loss, weights, config.dice)
    prep = make_prep(info, engine.dtype, config, cutmix_of(config, info, stores))
    return Trainable(prep, model, loss)


def cutmix_of(config: Config, info: ModelInfo, stores: Stores) -> float:
    """Return the ``cutmix`` of a run: that of the settings, or by the number of labelled pixels."""
    if config.cutmix != "auto":
        return config.cutmix
    few = info.has_classes and class_pixels(stores, info.class_names).sum() < _MANY_PIXELS
    return _CUTMIX if few else 0.0


def make_prep(
    info: ModelInfo, dtype: torch.dtype, random: SamplingConfig, cutmix: float = 0.0
) -> loaders.DevicePrep:
    """Return the module that varies and normalises images and expands labels."""
    targets: loaders.Targets = info.targets  # type: ignore[assignment]  # read from a file as a string
    augmentation: loaders.Augmentation | None = None
    if random.scale > 1 or random.rotate > 0 or cutmix > 0:
        augmentation = loaders.DeviceAugmentation(
            scale=random.scale, rotate=random.rotate, cutmix=cutmix
        )
    if random.augmentation is not None:
        own = own_augmentation(random.augmentation)
        augmentation = own if augmentation is None else _Both(own, augmentation)
    # Classes differ by their colours: five of six real sets had a lower IoU with jitter.
    jitter = float(not info.has_classes) if random.jitter == "auto" else random.jitter
    return loaders.DevicePrep(
        loaders.Normalize(info.mean, info.std, dtype),
        loaders.ClassTarget(info.channels) if info.has_classes else loaders.SpeedTarget(targets),
        jitter=loaders.Jitter(0.2 * jitter, 0.2 * jitter, 0.05 * jitter) if jitter else None,
        augmentation=augmentation,
    )


class _Both(nn.Module):
    """Two augmentations, one after the other."""

    def __init__(self, first: loaders.Augmentation, second: loaders.Augmentation) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, image: Tensor, label: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.second(*self.first(image, label, key), key)


def own_augmentation(spec: str) -> loaders.Augmentation:
    """Return the augmentation of a user; it and its results are checked."""
    function = imported("augmentation", spec)
    wanted = "write function(image, label, key), which returns image and label"
    try:
        inspect.signature(function).bind("image", "label", "key")
    except TypeError as error:
        raise UsageError("augmentation", f"{spec}: {error}: {wanted}") from error
    except ValueError:  # of a function without a signature, such as many in C
        pass

    if isinstance(function, nn.Module):  # it stays a part of the module, which moves to the device
        return function

    def augment(image: Tensor, label: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        changed = function(image, label, key)
        pair = changed if isinstance(changed, tuple) else (changed,)
        given = [(tuple(part.shape), part.dtype) for part in pair if isinstance(part, Tensor)]
        if given != [(tuple(part.shape), part.dtype) for part in (image, label)]:
            kinds = ", ".join(f"{str(kind)[6:]} {shape}" for shape, kind in given)
            raise UsageError(
                "augmentation",
                f"{spec} returned {kinds or type(changed).__name__} for uint8 {tuple(image.shape)} "
                f"and uint8 {tuple(label.shape)}: {wanted}, of the same shapes",
            )
        return changed  # type: ignore[no-any-return]  # just checked

    return augment


def prepare(trainable: Trainable, engine: Engine, config: Config) -> Optimizer:
    """Move a module to the engine's device, compile its parts, and return its optimizer.

    The module is changed in place; the names in its ``state_dict`` stay the same.
    """
    trainable.to(device=engine.device)
    trainable.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's own stubs lack this form
    optimizer = make_optimizer(trainable.model, config)
    trainable.model, optimizer = engine.optimize(trainable.model, optimizer)
    native, kind = engine.name == "native", engine.device.type
    if native and kind == "cpu":
        copy_no_kernels(optimizer)
    if native and engine.skips_steps and config.optimizer == "sgd":
        # If the first step is skipped, as often in fp16, torch's fused SGD uses a momentum buffer
        # that it never wrote. With a buffer of zeros all other first steps are the same.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    compiled = native and kind == "cpu" and engine.compile_mode == "loss"
    if compiled and isinstance(trainable.model, UNet):
        fuse_norms(trainable.model)
    trainable.compile_parts(engine.compile_mode)
    if engine.device.type == "cuda" or engine.captures:
        # A recorded step reads the rate from memory. A number takes the host 0.3 ms more per step.
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"], device=engine.device)
    return optimizer


def make_optimizer(model: nn.Module, config: Config) -> Optimizer:
    """Return the optimizer of a model's parameters.

    Weight decay applies to kernels only: decaying biases and BatchNorm factors costs accuracy
    (He et al. 2019, "Bag of tricks").
    """
    factor = config.encoder_lr
    encoder = getattr(model, "encoder", None)
    if factor != 1 and not isinstance(encoder, nn.Module):
        raise UsageError("encoder_lr", ": this model has no part named encoder")
    slow = set() if factor == 1 or encoder is None else set(encoder.parameters())
    for parameter in slow:
        parameter.requires_grad_(factor > 0)
    groups: list[dict[str, Any]] = [
        {
            "params": [
                p
                for p in model.parameters()
                if p.requires_grad and (p.ndim > 1, p in slow) == (kernel, slower)
            ],
            "weight_decay": config.weight_decay if kernel else 0.0,
            "factor": factor if slower else 1.0,
        }
        for slower in (False, True)
        for kernel in (True, False)
    ]
    used = [group for group in groups if group["params"]]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(used, lr=config.lr, fused=True)
    return torch.optim.SGD(used, lr=config.lr, momentum=0.9, nesterov=True, fused=True)


def class_share(stores: Stores, names: Sequence[str]) -> Tensor:
    """Return the share of each class in the labelled pixels of the train splits, fp32 (class,)."""
    pixels = torch.from_numpy(class_pixels(stores, names))
    return (pixels / pixels.sum().clamp(min=1)).float()


def channel_share(stores: Stores) -> Tensor:
    """Return the share of labelled pixels on which each channel of the target ``bins`` is 1."""
    counts = np.sum([store.histogram_speed for store in stores], axis=0).astype(np.float64)
    return torch.from_numpy(counts @ CHANNEL_TABLE / max(counts @ VALID_TABLE, 1)).float()


def inverse_root(share: Tensor) -> Tensor:
    """Return weights that favour what is rare: 1 / sqrt(share), scaled to mean 1.

    Weights of 1 / share would let a handful of pixels dominate the loss. A class that never occurs
    has the weight of the most common one.
    """
    common = share.max().clamp(min=1e-12)
    weight = (common / torch.where(share > 0, share, common)).sqrt().clamp(max=_LARGEST)
    return weight / weight.mean()


def labels_of(stores: Stores) -> str:
    """Return a digest of the labels of stores."""
    return " ".join(store.label_digest for store in stores)


def resume_within(loader: loaders.BatchLoader, saved: Checkpoint, folder: Path) -> None:
    """Resume a loader within an epoch; raise UsageError if its samples or labels are others."""
    now = labels_of(loader.tiles.stores)
    if saved.progress.get("labels", now) != now:
        raise UsageError(
            f"{folder} stopped within an epoch, and its stores hold other labels than then: train "
            "anew, from its weights by `init_from`, or resume with the old stores"
        )
    try:
        loader.load_state_dict(saved.loader)
    except UsageError as error:
        what = re.search(r"\((.*)\)", str(error))
        raise UsageError(
            f"{folder} stopped within an epoch, whose samples would be others "
            f"({what[1] if what else error}): resume it as it was, and change settings between "
            "epochs"
        ) from error


def load_stage(
    config: Config, info: ModelInfo, stores: Stores, stage: Stage, device: torch.device
) -> tuple[loaders.BatchLoader, loaders.BatchLoader | None]:
    """Load the tiles of a stage; return its loaders for training and validation.

    The validation loader returns each whole tile once. It is None if the validation split is empty.
    Validation tiles are streamed if they do not fit on the device beside the training tiles.
    """
    options: dict[str, Any] = {
        "progress": False if config.quiet else None,
        "residency": config.residency,
        "device": device,
    }
    room = loaders.DeviceTiles.room(device) if config.residency == "device" else None
    count = count_tiles(config, stores, "val")
    if config.patience is not None and not count:
        raise UsageError(
            "patience",
            "counts validations, and the stores have no validation tiles: leave it out, "
            "or build a store with a validation split",
        )
    tiles = tiles_of(info, stores, "train", limit=config.ram_limit, **options)
    crop, per_tile = config.crops_of(stage, tiles.side)
    training = loaders.BatchLoader(
        tiles,
        config.batch_size,
        crop=crop,
        augment=config.augment,
        crops_per_tile=per_tile,
        seed=config.seed,
        threads=config.loader_threads,
        min_road=config.min_road,
        min_share=parse_shares(config.min_share) if config.min_share else None,
        weights=config.weights,
    )
    if not count:
        return training, None
    if isinstance(tiles, loaders.StreamTiles):
        options["limit"] = tiles
    elif room is not None:
        over = float(tiles.nbytes + count * tiles.tile_bytes > room)
        if any(max_over_ranks([over], torch.device("cpu"))):  # loading is the work of all ranks
            options |= {"residency": "stream", "limit": config.ram_limit}
    whole = tiles_of(info, stores, "val", **options), config.val_batch_size
    return training, loaders.BatchLoader(*whole, shuffle=False, threads=config.loader_threads)
