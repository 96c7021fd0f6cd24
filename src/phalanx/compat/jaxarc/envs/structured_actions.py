"""`jaxarc.envs.structured_actions`."""

from phalanx.arc.actions import (
    Action as StructuredAction,
    BboxAction as BboxAction,
    MaskAction as MaskAction,
    PointAction as PointAction,
    create_bbox_action as create_bbox_action,
    create_mask_action as create_mask_action,
    create_point_action as create_point_action,
)

__all__ = [
    "BboxAction",
    "MaskAction",
    "PointAction",
    "StructuredAction",
    "create_bbox_action",
    "create_mask_action",
    "create_point_action",
]
