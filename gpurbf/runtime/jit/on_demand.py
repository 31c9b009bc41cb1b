"""Machine code is made of what is called: what only kernels call is a part of theirs.

Numba makes it of every function that it compiles on the way, a fifth of the time that a kernel
takes, and uses their LLVM code alone.
"""

from contextlib import contextmanager

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target


class Library(JITCodeLibrary):
    """What was compiled; its machine code is made when somebody asks for an address or a file."""

    _made = False

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True

    def _make(self):
        if self._made:
            return
        self._made = True
        super()._finalize_final_module()
        # What errors need, of all functions that are part of it.
        for variable in self._final_module.global_variables:
            if environment := lookup_environment(variable.name):
                type(self._codegen).set_env(self._codegen, variable.name, environment)

    def _defines(self, name):
        return any(f.name == name and not f.is_declaration for f in self._final_module.functions)

    def get_pointer_to_function(self, name):
        """See Numba; 0 where there is no such function."""
        self._ensure_finalized()
        if not self._defines(name):
            return 0
        self._make()
        return super().get_pointer_to_function(name)

    def _get_compiled_object(self):
        self._make()
        return super()._get_compiled_object()


@contextmanager
def _on_demand():
    """Libraries made inside are `Library`."""
    with global_compiler_lock:
        codegen = cpu_target.target_context.codegen()
        if isinstance(vars(codegen).get("_library_class"), type):  # a kernel inside another
            yield
            return
        codegen._library_class = Library
        codegen.set_env = _later
        try:
            yield
        finally:
            del codegen._library_class, codegen.set_env


def _later(name, environment):
    """`Library` does it, once there is machine code."""


class OnDemand(Compiler):
    """Numba's compiler with such libraries."""

    def compile_extra(self, func):
        """See Numba."""
        with _on_demand():
            return super().compile_extra(func)
