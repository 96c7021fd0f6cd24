"""Drop-in replacement for `jaxarc.envs.structured_actions`."""

from phalanx.arc.actions import (
    Action as StructuredAction,  # noqa: F401
    BboxAction as BboxAction,
    MaskAction as MaskAction,
    PointAction as PointAction,
    create_bbox_action as create_bbox_action,
    create_mask_action as create_mask_action,
    create_point_action as create_point_action,
)
