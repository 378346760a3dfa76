//! The document, field by field.

use std::collections::BTreeMap;

use warren_types::{Bytes, MilliCpu};

use super::*;
use crate::container::{Log, Owner};
use warren_image::Reference;

const HOST: Host = Host { unified_cgroups: false, limits_swap: true };

fn spec() -> ContainerSpec {
    ContainerSpec {
        id: ContainerId::parse("web.1").unwrap(),
        owner: Owner { task: "t".into(), attempt: 1, spec_hash: "h".into() },
        image: Reference::parse("x").unwrap(),
        command: None,
        args: None,
        env: Vec::new(),
        hostname: "web-1".into(),
        limits: Limits::default(),
        netns: None,
        mounts: Vec::new(),
        log: Log::Discard,
        assignment: Vec::new(),
        labels: BTreeMap::new(),
        stop_signal: None,
    }
}

fn image() -> RunConfig {
    RunConfig {
        entrypoint: vec!["/entry".into()],
        cmd: vec!["one".into()],
        env: vec!["PATH=/bin".into(), "A=image".into(), "broken".into()],
        working_dir: "/srv".into(),
        ..RunConfig::default()
    }
}

fn build(spec: &ContainerSpec, host: Host) -> oci::Spec {
    document(spec, &image(), &User::default(), "/warren", host).unwrap()
}

fn words(list: &[&str]) -> Option<Vec<String>> {
    Some(list.iter().map(|word| (*word).to_owned()).collect())
}

#[test]
fn command_and_args_follow_dockers_table() {
    for (command, args, want) in [
        (None, None, words(&["/entry", "one"])),
        (None, words(&["two"]), words(&["/entry", "two"])),
        (None, words(&[]), words(&["/entry"])),
        (words(&["/own"]), None, words(&["/own"])),
        (words(&["/own", "x"]), words(&["y"]), words(&["/own", "x", "y"])),
        (words(&[]), words(&["/y"]), words(&["/y"])),
    ] {
        let spec = ContainerSpec { command, args, ..spec() };
        assert_eq!(Some(command::words(&spec, &image()).unwrap()), want);
    }
    let nothing = ContainerSpec { command: words(&[]), ..spec() };
    let error = command::words(&nothing, &image()).unwrap_err().to_string();
    assert!(error.contains("does not name one"), "{error}");
}

#[test]
fn environment_merges_by_name_and_later_wins() {
    let overrides = [("A", "spec"), ("B", "x=y"), ("B", "last")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    let merged = command::environment("h", &image(), &overrides);
    assert_eq!(Some(merged), words(&["PATH=/bin", "HOSTNAME=h", "A=spec", "B=last"]));
    let bare = command::environment("h", &RunConfig::default(), &[]);
    assert!(bare[0].starts_with("PATH=/usr/local/sbin:"), "{bare:?}");
}

#[test]
fn limits_become_quota_shares_and_bytes() {
    let limits = Limits { cpu: Some(MilliCpu(250)), memory: Some(Bytes(64 << 20)) };
    let resources = |limits, host| super::resources(&limits, host);
    let both = resources(limits, HOST);
    let cpu = both.cpu().clone().unwrap();
    assert_eq!((cpu.quota(), cpu.period(), cpu.shares()), (Some(25_000), Some(100_000), Some(256)));
    let memory = both.memory().unwrap();
    assert_eq!((memory.limit(), memory.swap()), (Some(64 << 20), Some(64 << 20)));
    let without_swap = resources(limits, Host { limits_swap: false, ..HOST });
    assert_eq!(without_swap.memory().unwrap().swap(), None);
    let none = resources(Limits::default(), HOST);
    assert!(none.cpu().is_none() && none.memory().is_none());
    let tiny = resources(Limits { cpu: Some(MilliCpu(1)), memory: None }, HOST);
    assert_eq!(tiny.cpu().clone().unwrap().shares(), Some(2), "the kernel takes no fewer shares");
}

#[test]
fn namespaces_follow_network_and_cgroup_version() {
    let kinds = |netns: Option<&str>, unified_cgroups| {
        let spec = ContainerSpec { netns: netns.map(Into::into), ..spec() };
        let host = Host { unified_cgroups, ..HOST };
        build(&spec, host).linux().clone().unwrap().namespaces().clone().unwrap()
    };
    let network = |list: &[oci::LinuxNamespace]| {
        let found = list.iter().find(|n| n.typ() == oci::LinuxNamespaceType::Network).unwrap();
        found.path().clone()
    };
    assert_eq!(network(&kinds(None, false)), None);
    assert_eq!(network(&kinds(Some("/run/netns/x"), false)), Some("/run/netns/x".into()));
    assert_eq!((kinds(None, false).len(), kinds(None, true).len()), (5, 6));
}

#[test]
fn mounts_are_read_only_and_come_last() {
    let bind = BindMount { source: "/host/hosts".into(), target: "/etc/hosts".into() };
    let mounts = build(&ContainerSpec { mounts: vec![bind], ..spec() }, HOST).mounts().clone().unwrap();
    let last = mounts.last().unwrap();
    assert_eq!(last.destination(), Path::new("/etc/hosts"));
    assert!(last.options().clone().unwrap().contains(&"ro".to_owned()));
    assert_eq!(mounts.len(), 8);
}

#[test]
fn the_document_is_the_same_every_time_and_reads_back() {
    let first = build(&spec(), HOST);
    let text = serde_json::to_vec(&first).unwrap();
    assert_eq!(serde_json::from_slice::<oci::Spec>(&text).unwrap(), first);
    assert_eq!(first, build(&spec(), HOST));
    let process = first.process().clone().unwrap();
    assert_eq!(process.cwd(), Path::new("/srv"));
    assert_eq!(first.hostname().as_deref(), Some("web-1"));
    let linux = first.linux().clone().unwrap();
    assert_eq!(linux.cgroups_path().as_deref(), Some(Path::new("/warren/web.1")));
}

#[test]
fn a_relative_directory_in_the_image_is_refused() {
    let image = RunConfig { working_dir: "srv".into(), ..image() };
    assert!(document(&spec(), &image, &User::default(), "/warren", HOST).is_err());
}
