"""Which geoms can touch: MuJoCo's filter rules, applied once at plan time.

Tests: tests/collision/test_order.py, tests/collision/test_contact_rules.py.
"""

from typing import Any, NamedTuple

from mjx_lite.model.enums import DisableBit


class Pair(NamedTuple):
  """One candidate pair of geoms, the lower type first."""

  geom1: int
  geom2: int
  condim: int
  explicit: int  # index of the <pair>, -1 for a pair that passed the filters


def candidates(s: dict[str, Any], disableflags: int) -> list[Pair]:
  """List all pairs that can touch, in MuJoCo's contact order; none where contacts or constraints are disabled.

  Pairs ascend in the two bodies. The explicit pairs of two bodies come before their other pairs. The other pairs ascend in
  (geom of the first body, geom of the second body); where C searches in trees of bounds (midphase), in (geom of the lower
  type, other geom). An explicit pair is never filtered, and replaces the other pair of its two geoms.

  Source: `mj_collision`, `contactcompare`, `filterBodyPair`, `filterCollisionPair`.
  """
  if disableflags & (DisableBit.CONTACT | DisableBit.CONSTRAINT):
    return []
  filter_parent = not disableflags & DisableBit.FILTERPARENT
  found = []
  explicit_geoms = set()
  for k in range(s["npair"]):
    g1, g2 = int(s["pair_geom1"][k]), int(s["pair_geom2"][k])
    explicit_geoms.add(frozenset((g1, g2)))
    bodies = sorted((int(s["geom_bodyid"][g1]), int(s["geom_bodyid"][g2])))
    found.append(((*bodies, 0, k, 0), _ordered(s, g1, g2, int(s["pair_dim"][k]), k)))

  excluded = {(int(x) >> 16, int(x) & 0xFFFF) for x in s["exclude_signature"]}
  geoms_of = [range(adr, adr + num) if num else range(0) for adr, num in zip(s["body_geomadr"], s["body_geomnum"], strict=True)]
  for b1 in range(s["nbody"]):
    for b2 in range(b1 + 1, s["nbody"]):
      if not geoms_of[b1] or not geoms_of[b2] or (b1, b2) in excluded or _filter_bodies(s, b1, b2, filter_parent):
        continue
      in_trees = not disableflags & DisableBit.MIDPHASE and (len(geoms_of[b1]), len(geoms_of[b2])) != (1, 1)
      for g1 in geoms_of[b1]:
        for g2 in geoms_of[b2]:
          if _filter_masks(s, g1, g2) or frozenset((g1, g2)) in explicit_geoms:
            continue
          priority1, priority2 = s["geom_priority"][g1], s["geom_priority"][g2]
          condim1, condim2 = int(s["geom_condim"][g1]), int(s["geom_condim"][g2])
          condim = max(condim1, condim2) if priority1 == priority2 else condim1 if priority1 > priority2 else condim2
          pair = _ordered(s, g1, g2, condim, -1)
          found.append(((b1, b2, 1, *((pair.geom1, pair.geom2) if in_trees else (g1, g2))), pair))
  return [pair for _, pair in sorted(found)]


def _ordered(s, g1, g2, condim, explicit):
  if s["geom_type"][g1] > s["geom_type"][g2]:
    g1, g2 = g2, g1
  return Pair(g1, g2, condim, explicit)


def are_rigid(s: dict[str, Any], body1: Any, body2: Any) -> Any:
  """Return whether no dof moves two bodies (ids or arrays) against each other: they are welded together, or none has dofs."""
  weld1, weld2, dofnum = s["body_weldid"][body1], s["body_weldid"][body2], s["body_dofnum"]
  return (weld1 == weld2) | ((dofnum[weld1] == 0) & (dofnum[weld2] == 0))


def _filter_bodies(s, b1, b2, filter_parent):
  """Return True if the bodies cannot collide: no dof moves them against each other, or they are parent and child."""
  if are_rigid(s, b1, b2):
    return True
  w1, w2 = int(s["body_weldid"][b1]), int(s["body_weldid"][b2])
  p1, p2 = (int(s["body_weldid"][s["body_parentid"][w]]) for w in (w1, w2))
  return bool(filter_parent and w1 != 0 and w2 != 0 and (w1 == p2 or w2 == p1))


def _filter_masks(s, g1, g2):
  contype, affinity = s["geom_contype"], s["geom_conaffinity"]
  return not (contype[g1] & affinity[g2]) and not (contype[g2] & affinity[g1])
