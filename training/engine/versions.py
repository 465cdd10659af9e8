"""Print the version of torch and its accelerators: ``python -m training.engine.versions``.

A process of its own, since importing a damaged torch may end the process that does it.
"""

import torch

if __name__ == "__main__":
    devices = (torch.cuda, torch.xpu)
    names = [kind.get_device_name(i) for kind in devices for i in range(kind.device_count())]
    print(torch.__version__, "with", ", ".join(names) or "no accelerator")
