"""Triton's interpreter without the work that it repeats in every call of a device function."""

import types

from triton.runtime import interpreter


def patch_language_once():
    """Let Triton's language stay patched, in a process that does nothing but interpret.

    The interpreter patches it in each of the thousands of calls of a launch: a third of the time.
    """
    patch, modules = interpreter._patch_lang, set()

    def patch_once(function):
        module = function.__globals__["__name__"]
        if module not in modules:
            modules.add(module)
            patch(function)
        return types.SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = patch_once
