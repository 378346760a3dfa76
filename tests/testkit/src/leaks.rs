//! Lists everything that a node may leave behind on a machine by kind, for a comparison before and after.
//!
//! It reads the actual state (containerd's lists, the kernel's tables, the file system), never Warren's
//! records, and does not depend on Warren's names: a link is a leak whatever its name is.

mod containerd;
mod files;
mod kernel;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::wait::eventually;

/// What to list: one node's network namespace, containerd and directory.
#[derive(Debug, Clone, Copy)]
pub struct LeakScope<'a> {
    /// The file of the namespace that the node runs in.
    pub netns: &'a Path,
    /// The socket of the containerd that it uses.
    pub containerd_socket: &'a Path,
    /// The directory under which it keeps all files.
    pub directory: &'a Path,
    /// A part of the path of each of its cgroups that is not in the path of any other node's.
    pub cgroup_pattern: &'a str,
}

/// The resources by kind (`links`, `mounts` ...) and by name. The second of two equal names is listed as
/// `name (2)`, so that none is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    kinds: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Inventory {
    /// Lists all resources of `site` once. Panics when one of the tools fails.
    #[must_use]
    #[track_caller]
    pub fn take(site: &LeakScope<'_>) -> Inventory {
        let mut inventory = Inventory::default();
        kernel::list(site, &mut inventory);
        containerd::list(site, &mut inventory);
        files::list(site, &mut inventory);
        inventory
    }

    /// Lists only kernel resources, for use after containerd has ended.
    #[must_use]
    #[track_caller]
    pub fn of_kernel(site: &LeakScope<'_>) -> Inventory {
        let mut inventory = Inventory::default();
        kernel::list(site, &mut inventory);
        inventory
    }

    /// The number of resources of `kind`.
    #[must_use]
    pub fn count(&self, kind: &str) -> usize {
        self.kinds.get(kind).map_or(0, BTreeSet::len)
    }

    /// The number of resources of every kind that was listed.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.kinds.iter().map(|(kind, names)| (*kind, names.len())).collect()
    }

    /// The names of the resources of `kind`.
    pub fn names(&self, kind: &str) -> impl Iterator<Item = &str> {
        self.kinds.get(kind).into_iter().flatten().map(String::as_str)
    }

    /// The differences in `later`.
    #[must_use]
    pub fn difference(&self, later: &Inventory) -> InventoryDiff {
        let mut lines = Vec::new();
        let kinds: BTreeSet<_> = self.kinds.keys().chain(later.kinds.keys()).collect();
        let nothing = BTreeSet::new();
        for kind in kinds {
            let before = self.kinds.get(kind).unwrap_or(&nothing);
            let after = later.kinds.get(kind).unwrap_or(&nothing);
            lines.extend(after.difference(before).map(|name| format!("+ {kind}: {name}")));
            lines.extend(before.difference(after).map(|name| format!("- {kind}: {name}")));
        }
        InventoryDiff { lines }
    }

    /// Adds resources of `kind` with `names`; without names, records that the kind was listed.
    fn add(&mut self, kind: &'static str, names: impl IntoIterator<Item = String>) {
        let known = self.kinds.entry(kind).or_default();
        for name in names {
            let mut unique = name.clone();
            let mut number = 2;
            while !known.insert(unique) {
                unique = format!("{name} ({number})");
                number += 1;
            }
        }
    }
}

/// The additional (`+`) and missing (`-`) resources of one inventory compared to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InventoryDiff {
    lines: Vec<String>,
}

impl InventoryDiff {
    /// Whether both are the same.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

impl fmt::Display for InventoryDiff {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return formatter.write_str("no difference");
        }
        formatter.write_str(&self.lines.join("\n"))
    }
}

/// Waits until `take` returns the same as `before`; panics with the differences otherwise.
#[track_caller]
pub fn assert_returns_to(before: &Inventory, deadline: Duration, mut take: impl FnMut() -> Inventory) {
    eventually(deadline, "the machine to be as before", || {
        let difference = before.difference(&take());
        if difference.is_empty() { Ok(()) } else { Err(format!("\n{difference}")) }
    });
}

#[cfg(test)]
mod tests;
