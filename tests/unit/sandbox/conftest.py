"""The sandbox of this machine; tests are skipped without one."""

import pytest

from halfbyte.sandbox.tiers import Tier, find_tier


@pytest.fixture(scope="session")
def isolated() -> Tier:
    tier = find_tier()
    if tier.kind != "isolated":
        pytest.skip(f"no bubblewrap that works here: {tier.reason}")
    return tier
