"""What a package exports, read from its source."""

import ast


def public_names(path):
    """Return the names that a package exports; none if it leaves that to its modules.

    They are those of ``__all__``, or of ``from .module import NAME as NAME``, in the package or in
    its stub, which type checkers and lazy_loader both read.
    """
    stub = path.with_suffix(".pyi")
    lazy = "__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)"
    assert not stub.exists() or lazy in path.read_text(), f"{path} does not attach its stub"
    names = []
    for node in ast.parse((stub if stub.exists() else path).read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names += [alias.name for alias in node.names if alias.asname == alias.name]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names += ast.literal_eval(node.value)
    return names
