"""Actions as tuples."""

from __future__ import annotations

import numpy as np

from wattline.core.actions import ACTION_COLUMNS, NO_ACTIONS, POWER_OFF, START, STOP, list_actions


def test_the_rows_of_a_start_become_one_action() -> None:
    actions = np.zeros((6, ACTION_COLUMNS), dtype=np.int64)
    actions[:, :6] = [
        (STOP, 3, 3, -1, 0, 0),
        (START, 3, 3, 1, 8, 150),
        (START, 3, 3, 4, 2, 150),
        (START, 5, 3, 1, 8, 150),
        (POWER_OFF, -1, -1, 6, 0, 0),
        (POWER_OFF, -1, -1, 7, 0, 0),
    ]
    found = [(action.verb, action.job, action.nodes, action.gpus) for action in list_actions(actions)]
    assert found == [
        (STOP, 3, [-1], [0]),
        (START, 3, [1, 4], [8, 2]),
        (START, 5, [1], [8]),
        (POWER_OFF, -1, [6], [0]),
        (POWER_OFF, -1, [7], [0]),
    ]
    assert list_actions(actions)[1].settings == (150, 0, 0, 0, 0)
    assert list_actions(actions[1:2]) == [(START, 3, 3, [1], [8], (150, 0, 0, 0, 0))]
    assert list_actions(NO_ACTIONS) == []
