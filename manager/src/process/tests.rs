use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    flags: Flags,
}

fn said(line: &[&str]) -> Flags {
    Cli::try_parse_from(["x"].iter().chain(line)).unwrap().flags
}

fn all() -> Flags {
    said(&[
        "--listen=127.0.0.1:1",
        "--advertise=a:2",
        "--cluster-range=10.1.0.0/16",
        "--cluster-range=10.2.0.0/16",
        "--log-engine=sled",
    ])
}

fn place(run_dir: Option<&str>) -> PlaceArgs {
    PlaceArgs { data_dir: "/d".into(), run_dir: run_dir.map(PathBuf::from) }
}

fn machine() -> Machine {
    Machine { host_name: "m1".into(), address: Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7))), root: true }
}

fn plan(flags: Flags, machine: &Machine) -> Plan {
    Plan::new("/d".into(), &Told { node: NodeSection::default(), flags }, machine)
}

#[test]
fn what_is_remembered_is_what_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let metrics_listen = Some("none".parse().unwrap());
    let told = Told { node: NodeSection { run_dir: Some("/r".into()), metrics_listen }, flags: all() };
    told.put(Sections::new(dir.path())).remember().unwrap();
    let kept = Sections::load(dir.path()).unwrap();
    assert_eq!(
        Told::merge(kept.as_ref(), &place(None), MetricsArgs::default(), Flags::default(), false).unwrap(),
        told
    );
    let text = std::fs::read_to_string(dir.path().join("node.toml")).unwrap();
    insta::assert_snapshot!(text, @r#"
    [manager]
    advertise = "a:2"
    cluster-range = ["10.1.0.0/16", "10.2.0.0/16"]
    listen = "127.0.0.1:1"
    log-engine = "sled"

    [node]
    metrics-listen = "none"
    run-dir = "/r"
    "#);
}

#[test]
fn what_is_said_now_wins_and_the_rest_stays() {
    let kept = Told { node: NodeSection::default(), flags: all() }.put(Sections::new(Path::new("/d")));
    let now = said(&["--listen=127.0.0.1:9", "--cluster-range=10.1.0.0/16,10.2.0.0/16"]);
    let told = Told::merge(Some(&kept), &place(Some("/r2")), MetricsArgs::default(), now, true).unwrap();
    assert_eq!(told.node.run_dir(), Path::new("/r2"));
    assert_eq!(told.flags, Flags { listen: Some("127.0.0.1:9".parse().unwrap()), ..all() });
}

#[test]
fn what_cannot_be_changed_any_more_is_refused() {
    let failure = Told::merge(None, &place(None), MetricsArgs::default(), all(), false).unwrap_err();
    assert_eq!((failure.exit, failure.why.as_str()), (Exit::NotFound, "/d holds no manager"));
    for (old, now, why) in [
        (
            all(),
            "--cluster-range=10.3.0.0/16",
            "the cluster was made with 10.1.0.0/16,10.2.0.0/16, and --cluster-range says 10.3.0.0/16",
        ),
        (
            Flags::default(),
            "--cluster-range=10.3.0.0/16",
            "the cluster was made with the default range, and --cluster-range says 10.3.0.0/16",
        ),
        (all(), "--log-engine=redb", "the manager's log was made with sled, and --log-engine says redb"),
        (
            Flags::default(),
            "--log-engine=sled",
            "the manager's log was made with redb, and --log-engine says sled",
        ),
    ] {
        let failure = said(&[now]).over(old).unwrap_err();
        assert_eq!((failure.exit, failure.why.as_str()), (Exit::Conflict, why));
    }
    assert_eq!(said(&["--log-engine=redb"]).over(Flags::default()).unwrap(), Flags::default());
}

#[test]
fn defaults_make_a_manager_that_others_can_reach() {
    let plan = plan(Flags::default(), &machine());
    assert_eq!(plan.listen.to_string(), "0.0.0.0:8080");
    assert_eq!(plan.run_dir, Path::new("/run/warren"));
    assert_eq!(plan.ranges[0].to_string(), "10.210.0.0/16");
    assert_eq!(plan.advertised(plan.listen), "10.0.0.7:8080");
    assert_eq!(Plan::inner_address(plan.listen), "127.0.0.1:8080");
}

#[test]
fn one_address_is_listened_on_dialled_and_advertised() {
    let plan = plan(said(&["--listen=10.0.0.8:9000"]), &machine());
    assert_eq!(plan.advertised(plan.listen), "10.0.0.8:9000");
    assert_eq!(Plan::inner_address(plan.listen), "10.0.0.8:9000");
}

#[test]
fn what_is_advertised_may_be_another_place() {
    let advertised = |text: &str| {
        let plan = plan(said(&["--advertise", text]), &machine());
        plan.advertised(plan.listen)
    };
    assert_eq!(advertised("example.org"), "example.org:8080");
    assert_eq!(advertised("example.org:80"), "example.org:80");
    assert_eq!(advertised("fd00::1"), "[fd00::1]:8080");
    let lonely = Machine { address: None, ..machine() };
    let plan = plan(Flags::default(), &lonely);
    assert_eq!(plan.advertised(plan.listen), "127.0.0.1:8080");
}
