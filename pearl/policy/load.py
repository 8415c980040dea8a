"""Reading a policy: a path or a built-in by name, its parents merged, its sets applied, every fault at once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pearl.core.source import Span
from pearl.documents import Document, nearest, parse_document, read_document
from pearl.errors import Fault, PolicyError
from pearl.policy.assemble import assemble
from pearl.policy.located import Node
from pearl.policy.merge import merge
from pearl.policy.model import Policy
from pearl.policy.salvage import salvage

MAX_FILES = 32
"""Files that one policy may be made of; bounds what nested `extends` may multiply to."""

_BUILTIN = re.compile(r"builtin/([A-Za-z0-9_-]+)(?:@([A-Za-z0-9._-]+))?\Z")
_NO_SETS: Mapping[str, str] = {}


def builtin_folder() -> Path:
    """Where the built-in policies are."""
    return Path(__file__).resolve().parents[1] / "policies"


def builtin_names() -> tuple[str, ...]:
    """Names of the built-in policies."""
    return tuple(sorted(path.stem for path in builtin_folder().glob("*.yaml")))


def load_policy(ref: str | Path, *, sets: Mapping[str, str] = _NO_SETS) -> Policy:
    """Load and check a policy.

    `ref` is a path, or a built-in by name (`pearl`, `builtin/feasibility@v1`); `sets` override params by name, their
    values written as in the file. Raises PolicyError with every fault found.
    """
    loader = _Loader()
    root = loader.read(_Reference.of(ref), ())
    if root is None:
        raise PolicyError(_in_file_order(loader.faults))
    merged, faults = _with_sets(root, sets)
    loader.faults.extend(faults)
    policy, faults = assemble(
        merged,
        own=loader.own,
        lines={name: text.splitlines() for name, text in loader.texts.items()},
        sha256=loader.digest(sets),
        lost=loader.lost,
        complete=not loader.faults,
    )
    loader.faults.extend(faults)
    if loader.faults or policy is None:
        raise PolicyError(_in_file_order(loader.faults))
    return policy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    """A file to read: where it is, and how messages call it."""

    path: Path
    shown: str
    builtin: str | None = None
    version: str | None = None

    @classmethod
    def of(cls, ref: str | Path, *, base: Path | None = None, span: Span | None = None) -> _Reference:
        text = str(ref)
        if not text:
            raise PolicyError(_no_policy(text, span))
        match = _BUILTIN.match(text)
        known = text in builtin_names() or base is not None
        if match is None and isinstance(ref, str) and _is_name(text) and (known or not Path(text).is_file()):
            match = _BUILTIN.match(f"builtin/{text}")
        if match is None:
            path = Path(text) if base is None else base / text
            return cls(path=path, shown=str(path))
        name, version = match[1], match[2]
        if name not in builtin_names():
            raise PolicyError(_no_policy(text, span, name))
        return cls(path=builtin_folder() / f"{name}.yaml", shown=f"policies/{name}.yaml", builtin=name, version=version)

    def document(self) -> Document:
        if self.builtin is None:
            return read_document(self.path, error=PolicyError)
        return parse_document(self.path.read_text(encoding="utf-8"), file=self.shown, error=PolicyError)


def _no_policy(text: str, span: Span | None, name: str = "") -> Fault:
    expected = "a path that ends in .yaml, or the name of a built-in policy"
    return Fault(message=f"no policy {text!r}", span=span, expected=expected, hint=nearest(name, builtin_names()))


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_-]+", text) is not None


@dataclass(kw_only=True)
class _Loader:
    """Files read so far, in the order in which they count, and the faults found in them."""

    faults: list[Fault] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    lost: set[tuple[str, str]] = field(default_factory=set)
    """(section, name) of definitions whose faults were reported: they count as defined."""
    own: str = ""

    def read(self, reference: _Reference, chain: tuple[Path, ...]) -> Node | None:
        """The merged tree of a file and its parents; None where nothing can be salvaged."""
        try:
            document = reference.document()
        except PolicyError as e:
            self.faults.extend(e.faults)
            return None
        self.own = document.file
        found = salvage(document)
        self.faults.extend(found.faults)
        self.lost |= found.lost
        tree = found.tree
        if tree is None:
            return None
        self._check_version(reference, tree)
        self.faults.extend(_same_names(tree.get("spec", "constraints")))
        merged: Node | None = None
        here = (*chain, reference.path.resolve())
        extends = tree.get("extends")
        for parent in extends.value if extends else ():
            above = self._parent(parent, reference, here)
            merged = above if merged is None else merged if above is None else merge(merged, above)
        self.texts[document.file] = document.text
        self.sources.append(document.text)
        self.own = document.file
        return tree if merged is None else merge(merged, tree)

    def _parent(self, node: Node, child: _Reference, chain: tuple[Path, ...]) -> Node | None:
        try:
            parent = _Reference.of(str(node.value), base=child.path.parent, span=node.span)
            if parent.path.resolve() in chain:
                fault = Fault(message=f"extends: {node.value} leads back to itself", span=node.span)
                raise PolicyError(fault)
            if len(self.sources) + len(chain) >= MAX_FILES:
                raise PolicyError(Fault(message=f"extends more than {MAX_FILES} files", span=node.span))
            if parent.builtin is None and not parent.path.is_file():
                expected = "a path relative to this file, or builtin/NAME@VERSION"
                raise PolicyError(Fault(message=f"cannot read {parent.shown}", span=node.span, expected=expected))
        except (PolicyError, OSError, ValueError) as e:
            self.faults.extend(e.faults if isinstance(e, PolicyError) else [Fault(message=str(e), span=node.span)])
            return None
        return self.read(parent, chain)

    def _check_version(self, reference: _Reference, tree: Node) -> None:
        node = tree.get("metadata", "version")
        if reference.version is not None and (node is None or str(node.value) != reference.version):
            have = f"it is {node.value}" if node else "it has none"
            message = f"built-in policy {reference.builtin!r} has no version {reference.version!r}"
            self.faults.append(Fault(message=message, span=tree.span, hint=have))

    def digest(self, sets: Mapping[str, str]) -> str:
        """sha256 of every file's text, parents first, and of the sets in order of name."""
        digest = hashlib.sha256()
        for part in [*self.sources, *(f"{name}={sets[name]}" for name in sorted(sets))]:
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "big"))
            digest.update(raw)
        return digest.hexdigest()


def _with_sets(root: Node, sets: Mapping[str, str]) -> tuple[Node, list[Fault]]:
    """The tree with the values of params replaced; each value is placed at `--set name`, line 1."""
    faults: list[Fault] = []
    section = root.get("spec", "params")
    params = dict(section.items()) if section else {}
    policy = root.get("metadata", "name")
    for name, text in sets.items():
        if name not in params:
            hint = nearest(name, params) or "the policy has no params"
            message = f"--set {name}={text}: policy {str(policy.value if policy else '')!r}: unknown param {name!r}"
            faults.append(Fault(message=message, hint=hint))
            continue
        if not str(text).strip():
            faults.append(Fault(message=f"--set {name}: no value", expected="a value as written in the policy"))
            continue
        span = Span(file=f"--set {name}", line=1)
        fields = {**params[name].value, "value": Node(value=str(text), span=span, key_span=span)}
        params[name] = params[name].replaced(fields)
    if not sets or section is None:
        return root, faults
    spec = root.value["spec"]
    spec = spec.replaced({**spec.value, "params": section.replaced(params)})
    return root.replaced({**root.value, "spec": spec}), faults


def _same_names(section: Node | None) -> list[Fault]:
    """Rules of one file that share a name."""
    seen: dict[str, Node] = {}
    faults = []
    for node in section.value if section else ():
        name = node.value["name"]
        first = seen.setdefault(str(name.value), node)
        if first is not node:
            hint = f"first at line {first.span.line}"
            faults.append(Fault(message=f"duplicate rule {str(name.value)!r}", span=name.span, hint=hint))
    return faults


def _in_file_order(faults: list[Fault]) -> list[Fault]:
    unique = {str(fault): fault for fault in faults}
    return sorted(unique.values(), key=lambda f: (f.span.file, f.span.line, f.span.column) if f.span else ("", 0, 0))
