"""What results call several policies, so that they can be told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TypeVar

from pearl.errors import UsageError
from pearl.policy.model import Policy

KeyT = TypeVar("KeyT", bound=Hashable)


def labels_of(policies: Mapping[KeyT, Policy]) -> dict[KeyT, str]:
    """By the key of each policy its own name, or the name of its file where another policy has the same name.

    Raises UsageError where that does not tell them apart.
    """
    named = Counter(policy.name for policy in policies.values())
    labels = {
        key: policy.name if named[policy.name] == 1 else Path(policy.file).stem for key, policy in policies.items()
    }
    for label, count in Counter(labels.values()).items():
        if count > 1:
            files = ", ".join(policies[key].file for key, own in labels.items() if own == label)
            raise UsageError(
                f"{files}: results of these policies could not be told apart; expected different names in their"
                " metadata, or different file names"
            )
    return labels
