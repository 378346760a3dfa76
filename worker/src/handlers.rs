//! What a task has around its container: its image, its directory, its volumes, its secrets and configs, and its share
//! in published ports.
//!
//! Each handler is a pair of `ensure` and `remove` (or `hold`, `serve` and `release`), harmless the second
//! time.

pub(crate) mod contents;
pub(crate) mod files;
pub(crate) mod images;
pub(crate) mod ports;
pub(crate) mod setups;
pub(crate) mod volumes;
