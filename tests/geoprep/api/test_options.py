"""Test that commands and functions agree: every option is a keyword with the same default."""

import inspect

import click
import pytest

import geoprep
from geoprep.cli import cli

# Command -> its function, and options that only the command has: what it prints, and how.
PAIRS = {
    "synth": ("synthesize", {}),
    "download": ("download", {}),
    "info": ("store_info", {}),
    "verify": ("check_store", {}),
    "preview": ("preview", {"over", "pixel_size"}),
    "score": ("score", {}),
}
NAMES = {"products": "product", "source": "store"}
PRINTING = {"as_json", "quiet"}


@pytest.mark.parametrize("name", PAIRS)
def test_options_are_keywords_with_the_same_defaults(name):
    function, own = PAIRS[name]
    keywords = dict(inspect.signature(getattr(geoprep, function)).parameters)
    keywords.pop("progress", None)
    for option in cli.commands[name].params:
        given = NAMES.get(option.name, option.name)
        if given in PRINTING or option.name in own:
            continue
        assert given in keywords, f"{function} has no {given}"
        default = keywords.pop(given).default
        if isinstance(option, click.Option) and not option.required:
            shown = option.get_default(click.Context(cli.commands[name]))
            shown = None if "UNSET" in repr(shown) else shown  # click's mark of no default
            if option.multiple:
                shown = shown[0] if shown else ()
            elif option.is_flag:
                shown = bool(shown)
            assert default == shown, f"{function}({given}={default!r}), --{option.name} {shown!r}"
    assert not keywords, f"geoprep {name} has no options for {sorted(keywords)}"
