//! A spec, an image and machines for the tests beside this.

use warren_image::{Reference, RunConfig};

use super::*;
use crate::container::Owner;

/// Version 1, and a machine that gives everything.
pub(crate) const HOST: Host = Host {
    unified_cgroups: false,
    limits_swap: true,
    recursive_read_only: true,
    capabilities: capabilities::Set::EVERY,
    architectures: Architectures::Native,
};

pub(crate) fn spec() -> ContainerSpec {
    let owner = Owner { task: "t".into(), attempt: 1, spec_hash: "h".into() };
    ContainerSpec {
        hostname: "web-1".into(),
        ..ContainerSpec::new(ContainerId::parse("web.1").unwrap(), owner, Reference::parse("x").unwrap())
    }
}

pub(crate) fn image() -> RunConfig {
    RunConfig {
        entrypoint: vec!["/entry".into()],
        cmd: vec!["one".into()],
        env: vec!["PATH=/bin".into(), "A=image".into(), "broken".into()],
        working_dir: "/srv".into(),
        ..RunConfig::default()
    }
}

pub(crate) fn build(spec: &ContainerSpec, host: Host) -> oci::Spec {
    build_with(spec, &Meant::default(), host)
}

pub(crate) fn build_with(spec: &ContainerSpec, meant: &Meant, host: Host) -> oci::Spec {
    spec.check().unwrap();
    document(spec, &image(), meant, "/warren", host).unwrap()
}

pub(crate) fn words(list: &[&str]) -> Option<Vec<String>> {
    Some(list.iter().map(|word| (*word).to_owned()).collect())
}
