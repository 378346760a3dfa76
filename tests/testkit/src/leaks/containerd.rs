//! Resources of containerd in all its namespaces, from its own lists.

use crate::containerd::ctr;
use crate::tool;

use super::{Inventory, LeakScope};

/// Kinds and the arguments of `ctr` that list them: one line each, the name first. Content is not listed:
/// containerd collects unreferenced blobs at any time, and images are listed.
const LISTS: [(&str, &[&str], Header); 5] = [
    ("containers", &["containers", "list", "--quiet"], Header::No),
    ("tasks", &["tasks", "list", "--quiet"], Header::No),
    ("images", &["images", "list", "--quiet"], Header::No),
    ("leases", &["leases", "list", "--quiet"], Header::No),
    ("snapshots", &["snapshots", "list"], Header::Yes),
];

#[derive(Clone, Copy, PartialEq)]
enum Header {
    No,
    Yes,
}

#[track_caller]
pub(super) fn list(site: &LeakScope<'_>, inventory: &mut Inventory) {
    let namespaces = ask(site, &["namespaces", "list", "--quiet"]);
    for (kind, arguments, header) in LISTS {
        inventory.add(kind, []);
        for namespace in namespaces.lines() {
            let arguments: Vec<&str> = ["--namespace", namespace].iter().chain(arguments).copied().collect();
            let answer = ask(site, &arguments);
            let lines = answer.lines().skip(usize::from(header == Header::Yes));
            let words = lines.map(|line| line.split_whitespace().next_back().map(|last| (line, last)));
            let names = words.flatten().map(|(line, last)| match header {
                // `KEY PARENT KIND`: an active snapshot belongs to a container, a committed one to an image.
                Header::Yes => format!("{namespace}/{} {last}", line.split_whitespace().next().unwrap_or("")),
                Header::No => format!("{namespace}/{line}"),
            });
            inventory.add(kind, names);
        }
    }
}

#[track_caller]
fn ask(site: &LeakScope<'_>, arguments: &[&str]) -> String {
    let arguments = ["--timeout", "30s"].iter().chain(arguments).copied();
    match tool::stdout(ctr(site.containerd_socket, arguments), tool::DEADLINE) {
        Ok(answer) => answer,
        Err(error) => panic!("{error}"),
    }
}
