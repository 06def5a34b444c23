"""The same for Podman: every test of push, pull and releases in which the engine has a part."""

from __future__ import annotations

import pytest

from envbuild.engines import PodmanEngine
from integration.test_push_pull import (  # noqa: F401 (these are the tests)
    test_a_candidate_is_proven_elsewhere_and_pushed_from_there,
    test_a_pull_that_is_killed_leaves_no_name_and_goes_on,
    test_any_image_can_be_pulled_by_its_name,
    test_images_tells_what_is_where_and_prune_takes_only_what_nothing_speaks_of,
    test_only_layers_that_are_missing_move,
    test_two_pulls_at_once_move_the_layers_once,
    test_what_was_pushed_comes_back_and_counts_as_proven,
)
from integration.test_release import test_the_same_on_an_engine  # noqa: F401


@pytest.fixture
def engine(podman: PodmanEngine) -> PodmanEngine:
    """In place of Docker."""
    return podman
