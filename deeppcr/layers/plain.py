"""Classes of Python, numpy and jax of which it is known where their objects keep what can be changed."""

import collections
import enum
import functools
import types

import jax
import numpy as np

from deeppcr.layers.trusted import words

VALUES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    slice,
    np.generic,
    np.dtype,
    jax.Array,
    jax.ShapeDtypeStruct,
)
LEAVES = (
    *VALUES,
    type(None),
    type(...),
    type(NotImplemented),
    types.CodeType,
    types.GenericAlias,
    types.UnionType,
    jax.tree_util.PyTreeDef,
)
# Classes of Python's own whose objects keep their state in attributes, in entries or in arguments.
BASES = (
    object,
    functools.partial,
    types.SimpleNamespace,
    collections.OrderedDict,
    collections.defaultdict,
    enum.Enum,
    BaseException,
    Exception,
)
DESCRIPTORS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
    type(vars(collections.namedtuple("_Named", "a"))["a"]),
)
CONTAINERS = (dict, list, set, frozenset, tuple, collections.deque)
JITTED = type(jax.jit(lambda x: x))
# Methods that Python calls by itself are looked at in each class; not those that make, show or copy objects.
METHODS = (types.FunctionType, classmethod, staticmethod, property)
MAKE = frozenset(["__init__", "__new__", "__post_init__"])
ASIDE = MAKE | words(
    "__repr__ __str__ __reduce__ __reduce_ex__ __getstate__ __setstate__ __del__ __sizeof__ __dir__"
)
BY_NAME = (getattr, hasattr, vars, dir, setattr, delattr)
