//! The feature level of a cluster: which semantics its commands and objects have.
//!
//! Members of two versions replay the same log and must reach the same state, so a new version cannot change
//! what an old command does. Where semantics change, both stay, and the state decides which one is used:
//!
//! 1. Raise [`FEATURE_LEVEL`] by one, and add to its list what the new level changes.
//! 2. In `apply`, where semantics differ, check `state.feature_level() >= N`. Never check [`FEATURE_LEVEL`]
//!    there: it differs between members, the state's level does not. The same holds for writing a new field
//!    or command.
//! 3. Add the golden files of the new level (the codec's tests show how); those of older levels stay.
//!
//! The leader raises the level once every member supports it ([`crate::reconcile_feature_level`]). A member
//! that reads a command or a snapshot with a level that it does not support stops with a message; `apply`
//! never sees one. Gates that every supported version has passed are removed.

/// The highest feature level that this program supports, and the one at which it creates a cluster.
///
/// * 0: clusters created before there were feature levels.
/// * 1: no changes.
/// * 2: several managers, and records of removed nodes.
pub const FEATURE_LEVEL: u32 = 2;

/// From this level on there are several managers: removed nodes are recorded, and nodes cannot join with a
/// manager token.
pub(super) const MULTI_MANAGER_LEVEL: u32 = 2;
