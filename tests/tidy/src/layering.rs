//! Who may depend on whom, over the direct dependencies that `cargo metadata` tells.

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

use crate::source::root;

/// A workspace crate and what it names in its Cargo.toml.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Crate {
    /// Its name.
    pub name: String,
    /// Its directory from the repository's root.
    pub directory: String,
    /// Dependencies of what ships, and of build scripts.
    pub shipped: Vec<String>,
    /// Dependencies of its tests.
    pub tested_with: Vec<String>,
}

impl Crate {
    /// The crates under `tests/` never ship.
    fn is_test_crate(&self) -> bool {
        self.directory.starts_with("tests/")
    }
}

/// Crates that decide: no input but arguments, no output but results.
pub const PURE: [&str; 4] = ["warren-types", "warren-core", "warren-consensus", "warren-task"];

/// What pure crates may use besides each other: data structures, errors, serialisation of types, and strategies for
/// tests.
const PURE_MAY_USE: [&str; 10] = [
    "bytes",
    "humantime",
    "imbl",
    "ipnet",
    "proptest",
    "serde",
    "serde_json",
    "smallvec",
    "thiserror",
    "xxhash-rust",
];

/// The consensus machine is a shell around the raft crate, which wants a slog logger handed in.
const CONSENSUS_MAY_USE: [&str; 2] = ["raft", "slog"];

/// One side of the cluster must never link the other: they speak through the wire only.
const MANAGER_SIDE: [&str; 4] = ["warren-manager", "warren-core", "warren-consensus", "warren-log"];
const WORKER_SIDE: [&str; 8] = [
    "warren-worker",
    "warren-task",
    "warren-runtime",
    "warren-image",
    "warren-network",
    "warren-logger",
    "warren-volume",
    "warren-health",
];

/// Doors to the outside that one crate (or two) hold the key of. Tests may go through any door.
const OWNERS: [(&str, &[&str]); 10] = [
    ("containerd-client", &["warren-runtime", "warren-image"]),
    ("rtnetlink", &["warren-network"]),
    ("netlink-packet-route", &["warren-network"]),
    ("iptables", &["warren-network"]),
    ("prometheus-client", &["warren-telemetry"]),
    ("redb", &["warren-log"]),
    ("sled", &["warren-log"]),
    ("raft", &["warren-consensus"]),
    ("anyhow", &["warren", "warren-manager", "warren-worker"]),
    ("warren-proto", &["warren", "warren-client", "warren-manager", "warren-worker"]),
];

/// The workspace's crates, read without the network.
#[must_use]
pub fn crates() -> Vec<Crate> {
    let root = root();
    metadata()
        .workspace_packages()
        .into_iter()
        .map(|package| {
            let of_kind = |is_test: bool| {
                let kinds = package.dependencies.iter();
                let wanted = kinds.filter(|found| (found.kind == DependencyKind::Development) == is_test);
                wanted.map(|found| found.name.clone()).collect()
            };
            let directory = package.manifest_path.parent().expect("a manifest lies in a directory");
            let directory = directory.as_std_path().strip_prefix(&root).expect("members lie below the root");
            Crate {
                name: package.name.to_string(),
                directory: directory.to_string_lossy().into_owned(),
                shipped: of_kind(false),
                tested_with: of_kind(true),
            }
        })
        .collect()
}

/// `cargo metadata` without dependencies: only what the members say themselves.
#[must_use]
pub fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .expect("cargo can read the workspace")
}

/// Pure crates depend on pure crates and a short list of others.
#[must_use]
pub fn impure_dependencies(crates: &[Crate]) -> Vec<String> {
    let mut violations = Vec::new();
    for member in crates.iter().filter(|member| PURE.contains(&member.name.as_str())) {
        for used in &member.shipped {
            let used = used.as_str();
            let is_allowed = PURE.contains(&used)
                || PURE_MAY_USE.contains(&used)
                || (member.name == "warren-consensus" && CONSENSUS_MAY_USE.contains(&used));
            if !is_allowed {
                violations.push(format!("{} is pure and must not depend on {used}", member.name));
            }
        }
    }
    for name in PURE.iter().filter(|name| crates.iter().all(|member| member.name != **name)) {
        violations.push(format!("{name} is listed as pure, but there is no such crate"));
    }
    violations
}

/// Nothing of a manager depends on anything of a worker, nor the other way round, not even in tests.
#[must_use]
pub fn crossed_sides(crates: &[Crate]) -> Vec<String> {
    let mut violations = Vec::new();
    for member in crates {
        for (one, other) in [(&MANAGER_SIDE[..], &WORKER_SIDE[..]), (&WORKER_SIDE[..], &MANAGER_SIDE[..])] {
            if one.contains(&member.name.as_str()) {
                let crossing = member.shipped.iter().chain(&member.tested_with);
                violations.extend(crossing.filter(|used| other.contains(&used.as_str())).map(|used| {
                    format!("{} must not depend on {used}: it is of the other side", member.name)
                }));
            }
        }
    }
    violations
}

/// Doors to the outside are opened by their owners only.
#[must_use]
pub fn doors_without_key(crates: &[Crate]) -> Vec<String> {
    let mut violations = Vec::new();
    for member in crates.iter().filter(|member| !member.is_test_crate()) {
        for (door, owners) in OWNERS {
            let uses = member.shipped.iter().any(|used| used == door);
            if uses && !owners.contains(&member.name.as_str()) {
                let owners = owners.join(", ");
                violations.push(format!("{} must not depend on {door}: only {owners} may", member.name));
            }
        }
    }
    violations
}

/// What ships does not contain what tests are made of.
#[must_use]
pub fn shipped_tests(crates: &[Crate]) -> Vec<String> {
    let tests: Vec<&str> =
        crates.iter().filter(|member| member.is_test_crate()).map(|member| member.name.as_str()).collect();
    let shipping = crates.iter().filter(|member| !member.is_test_crate());
    shipping
        .flat_map(|member| member.shipped.iter().map(move |used| (member, used)))
        .filter(|(_, used)| tests.contains(&used.as_str()))
        .map(|(member, used)| format!("{} ships and must not depend on {used}", member.name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_none;

    fn member(name: &str, directory: &str, shipped: &[&str], tested_with: &[&str]) -> Crate {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Crate {
            name: name.to_owned(),
            directory: directory.to_owned(),
            shipped: owned(shipped),
            tested_with: owned(tested_with),
        }
    }

    #[test]
    fn pure_crates_stay_pure() {
        assert_none(&impure_dependencies(&crates()));
    }

    #[test]
    fn manager_and_worker_stay_apart() {
        assert_none(&crossed_sides(&crates()));
    }

    #[test]
    fn doors_have_owners() {
        assert_none(&doors_without_key(&crates()));
    }

    #[test]
    fn tests_do_not_ship() {
        assert_none(&shipped_tests(&crates()));
    }

    #[test]
    fn an_impure_dependency_is_named() {
        let pure = PURE.map(|name| member(name, "x", &[], &["tokio"]));
        assert_none(&impure_dependencies(&pure));
        let mut impure = pure.to_vec();
        impure[1].shipped = vec!["imbl".to_owned(), "tokio".to_owned(), "raft".to_owned()];
        let expected = [
            "warren-core is pure and must not depend on tokio",
            "warren-core is pure and must not depend on raft",
        ];
        assert_eq!(impure_dependencies(&impure), expected);
        assert_eq!(
            impure_dependencies(&pure[1..]),
            ["warren-types is listed as pure, but there is no such crate"]
        );
    }

    #[test]
    fn a_crossing_is_named_in_both_directions_and_in_tests() {
        let crates = [
            member("warren-manager", "manager", &["warren-runtime"], &[]),
            member("warren-task", "worker/core", &[], &["warren-core"]),
            member("warren", "cli", &["warren-manager", "warren-worker"], &[]),
        ];
        assert_eq!(crossed_sides(&crates).len(), 2);
    }

    #[test]
    fn a_door_opened_by_a_stranger_is_named() {
        let crates = [
            member("warren-worker", "worker", &["containerd-client"], &[]),
            member("warren-runtime", "pkg/runtime", &["containerd-client"], &[]),
            member("warren-test-e2e", "tests/e2e", &["containerd-client"], &[]),
        ];
        let expected =
            ["warren-worker must not depend on containerd-client: only warren-runtime, warren-image may"];
        assert_eq!(doors_without_key(&crates), expected);
    }

    #[test]
    fn a_shipped_test_crate_is_named() {
        let crates = [
            member("warren-testkit", "tests/testkit", &[], &[]),
            member("warren-log", "pkg/log", &["warren-testkit"], &[]),
            member("warren-image", "pkg/image", &[], &["warren-testkit"]),
        ];
        assert_eq!(shipped_tests(&crates), ["warren-log ships and must not depend on warren-testkit"]);
    }
}
