//! The level of a cluster: which meaning its commands and objects have.
//!
//! Members of two versions replay the same log and must come to the same state, so a new version cannot
//! simply do something else with an old command. Where a meaning changes, both stay, and the state says which
//! one holds:
//!
//! 1. Raise [`LEVEL`] by one, and say in its list what the new level changes.
//! 2. In `apply`, where the meaning differs, ask `state.level() >= N`. Never ask [`LEVEL`] there: it differs
//!    between members, the state's level does not. The same goes for what writes a new field or command.
//! 3. Add the golden files of the new level (the codec's tests say how); those of older levels stay.
//!
//! The leader raises the level once every member supports it ([`crate::reconcile_level`]). A member that
//! comes upon a level that it does not support stops with a message when it reads the command or the
//! snapshot; `apply` never sees one. Gates whose level every supported version starts at are removed.

/// The highest level that this program supports, and the one at which it founds a cluster.
///
/// * 0: as clusters were founded before there were levels.
/// * 1: nothing has changed its meaning yet.
/// * 2: several managers, and what a removed node was.
pub const LEVEL: u32 = 2;

/// From this level on there are several managers: a node that is removed is remembered, and a token for managers lets
/// no node join.
pub(super) const SEVERAL_MANAGERS: u32 = 2;
