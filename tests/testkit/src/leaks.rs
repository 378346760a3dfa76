//! Everything that a node may leave behind on a machine, listed by kind, to be compared before and after.
//!
//! It looks at what is there (containerd's own lists, the kernel's tables, the file system), never at what
//! Warren believes, and it does not know Warren's names: a link is a leak whatever it is called.

mod files;
mod kernel;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::wait::eventually;

/// Where to look: one node's network namespace, containerd and directory.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// The file of the namespace that the node runs in.
    pub netns: &'a Path,
    /// The socket of the containerd that it uses.
    pub containerd_socket: &'a Path,
    /// The directory under which it keeps everything.
    pub directory: &'a Path,
    /// What the path of each of its cgroups contains, and that of no other node's.
    pub cgroup_mark: &'a str,
}

/// What there is, by kind (`links`, `mounts` ...) and by name. Of two equal things the second one is called
/// `name (2)`, so that none is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    kinds: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Inventory {
    /// Looks at everything of `site` once. Panics when one of the tools that list things fails.
    #[must_use]
    #[track_caller]
    pub fn take(site: &Site<'_>) -> Inventory {
        let mut inventory = Inventory::default();
        kernel::list(site, &mut inventory);
        stored::list(site, &mut inventory);
        files::list(site, &mut inventory);
        inventory
    }

    /// Looks only at what the kernel has, for when no containerd answers any more.
    #[must_use]
    #[track_caller]
    pub fn of_kernel(site: &Site<'_>) -> Inventory {
        let mut inventory = Inventory::default();
        kernel::list(site, &mut inventory);
        inventory
    }

    /// How many things of `kind` there are.
    #[must_use]
    pub fn count(&self, kind: &str) -> usize {
        self.kinds.get(kind).map_or(0, BTreeSet::len)
    }

    /// How many things there are of every kind that was looked for.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.kinds.iter().map(|(kind, names)| (*kind, names.len())).collect()
    }

    /// The names of the things of `kind`.
    pub fn names(&self, kind: &str) -> impl Iterator<Item = &str> {
        self.kinds.get(kind).into_iter().flatten().map(String::as_str)
    }

    /// What is different in `later`.
    #[must_use]
    pub fn difference(&self, later: &Inventory) -> Difference {
        let mut lines = Vec::new();
        let kinds: BTreeSet<_> = self.kinds.keys().chain(later.kinds.keys()).collect();
        let nothing = BTreeSet::new();
        for kind in kinds {
            let before = self.kinds.get(kind).unwrap_or(&nothing);
            let after = later.kinds.get(kind).unwrap_or(&nothing);
            lines.extend(after.difference(before).map(|name| format!("+ {kind}: {name}")));
            lines.extend(before.difference(after).map(|name| format!("- {kind}: {name}")));
        }
        Difference { lines }
    }

    /// Notes that there are things of `kind` called `names`; without any, that it was looked for.
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

/// What one inventory has more (`+`) and less (`-`) than another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    lines: Vec<String>,
}

impl Difference {
    /// Whether both are the same.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return formatter.write_str("no difference");
        }
        formatter.write_str(&self.lines.join("\n"))
    }
}

/// Waits until `take` finds exactly what `before` had; what differs is shown when it does not.
#[track_caller]
pub fn assert_returns_to(before: &Inventory, deadline: Duration, mut take: impl FnMut() -> Inventory) {
    eventually(deadline, "the machine to be as before", || {
        let difference = before.difference(&take());
        if difference.is_empty() { Ok(()) } else { Err(format!("\n{difference}")) }
    });
}

#[cfg(test)]
mod tests;
