"""A compiler that fails, and errors that are not its own."""

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

from geoprep.errors import UsageError
from training.model.compiled import Compiled


def test_a_failing_compiler_warns_once_and_the_plain_loss_is_used(monkeypatch):
    def broken(*_args, **_options):
        calls.append(1)
        raise TorchDynamoException("cc1plus: out of memory\nand much more")

    calls = []
    monkeypatch.setattr(torch, "compile", lambda plain, **_: broken)
    call = Compiled(lambda x: x + 1, "the loss")
    with pytest.warns(RuntimeWarning, match=r"the loss could not be compiled.*cc1plus: out of"):
        assert call(1) == 2
    assert call(2) == 3
    assert len(calls) == 1


def test_an_error_of_the_callable_itself_is_not_hidden(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda plain, **_: plain)

    def refuse(_):
        raise UsageError("odd side")

    with pytest.raises(UsageError, match="odd side"):
        Compiled(refuse, "the model")(1)
