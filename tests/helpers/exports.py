"""What a package exports, read from its source."""

import ast


def public_names(path):
    """Return the names of ``__all__``: a list in the module, or what its stub re-exports.

    Type checkers and lazy_loader both read ``from .module import NAME as NAME`` of a stub.
    """
    stub = path.with_suffix(".pyi")
    lazy = "__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)"
    names = []
    for node in ast.parse((stub if stub.exists() else path).read_text()).body:
        if isinstance(node, ast.ImportFrom) and stub.exists():
            assert all(alias.asname == alias.name for alias in node.names), f"{stub}:{node.lineno}"
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names += ast.literal_eval(node.value)
    assert not stub.exists() or lazy in path.read_text(), f"{path} does not attach its stub"
    return names
