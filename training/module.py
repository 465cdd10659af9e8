"""All that happens on the device in one call: normalise, network, target, loss."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from geoprep.errors import UsageError
from loaders import DevicePrep
from training.engine.compiled import Compiled
from training.losses import LossParts


class Trainable(nn.Module):
    """Bytes in, loss out: what an optimizer and ``DistributedDataParallel`` see.

    Since normalisation and loss are inside, bytes go in and three scalars come back, whatever the
    number of devices.

    Parameters
    ----------
    prep
        Normalises and expands the target; pads whole tiles.
    network
        Normalised image -> logits of the same size.
    loss
        Takes logits, target and valid mask, see `training.losses`.

    Raises
    ------
    UsageError
        The target is class numbers, which sigmoid channels cannot learn.
    """

    def __init__(self, prep: DevicePrep, network: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        if prep.target.targets == "class":
            raise UsageError("targets 'class' is for losses of your own; train with 'bins'")
        self.prep = prep
        self.network = network
        self.loss = loss
        # Beside the modules and not in their place, so that no name in state_dict() changes.
        self._fast_network: Callable[[Tensor], Tensor] | None = None
        self._fast_loss: Callable[[Tensor, Tensor, Tensor], LossParts] | None = None

    def compile_loss(self) -> None:
        """Compile the loss for training steps."""
        self._fast_loss = Compiled(self.loss, "the loss")

    def compile_network(self) -> None:
        """Compile the network for training steps; validation runs it as it is."""
        self._fast_network = Compiled(self.network, "the network")

    def forward(self, image: Tensor, speed: Tensor, key: Tensor) -> LossParts:
        """Return the loss of a batch.

        Parameters
        ----------
        image
            uint8 (n, band, y, x).
        speed
            uint8 (n, y, x), mph.
        key
            int64 (n,), feeds random jitter.
        """
        fast = self.training
        network = (fast and self._fast_network) or self.network
        loss = (fast and self._fast_loss) or self.loss
        ready = self.prep({"image": image, "speed": speed, "key": key})
        parts: LossParts = loss(network(ready.image), ready.target, ready.valid)
        return parts

    def logits(self, image: Tensor) -> Tensor:
        """Return logits (n, channel, y, x) of uint8 (n, band, y, x), padding cut off again."""
        rows, columns = image.shape[-2:]
        padded = self.prep.pad(image)
        logits: Tensor = self.network(self.prep.normalize(padded))
        return logits[..., :rows, :columns]
