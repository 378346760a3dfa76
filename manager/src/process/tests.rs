use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use clap::Parser;

use super::*;
use crate::recovery::alone::Alone;

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

fn init() -> Occasion {
    Occasion::Init
}

fn join() -> Occasion {
    Occasion::Join(JoinArgs { address: "10.0.0.7:8080".parse().unwrap(), token: "T".into() })
}

fn place(run_dir: Option<&str>) -> PlaceArgs {
    PlaceArgs { data_dir: "/d".into(), run_dir: run_dir.map(PathBuf::from) }
}

fn machine() -> Machine {
    Machine { host_name: "m1".into(), address: Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7))), root: true }
}

fn plan(flags: Flags, machine: &Machine) -> Plan {
    Plan::new("/d".into(), &Told { node: NodeSection::default(), flags }, machine).unwrap()
}

#[test]
fn what_another_process_of_the_node_has_is_told_as_that() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("data");
    let taken = || Failure::new(Exit::Failed, WHAT, "the address is taken", "");
    let why = || or_in_use(&place, taken()).why;
    assert_eq!(why(), "the address is taken");
    assert!(!place.exists(), "to ask makes nothing");
    let held = DataDir::open(&place).unwrap();
    assert!(why().contains("is in use by process"), "{}", why());
    assert_eq!(or_in_use(&place, taken()).exit, Exit::Conflict);
    drop(held);
    assert_eq!(why(), "the address is taken");
}

#[test]
fn what_is_remembered_is_what_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let metrics_listen = Some("none".parse().unwrap());
    let told = Told { node: NodeSection { run_dir: Some("/r".into()), metrics_listen }, flags: all() };
    told.put(Sections::new(dir.path())).remember().unwrap();
    let kept = Sections::load(dir.path()).unwrap();
    assert_eq!(
        Told::merge(kept.as_ref(), &place(None), MetricsArgs::default(), Flags::default(), &Occasion::Run)
            .unwrap(),
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
    let told = Told::merge(Some(&kept), &place(Some("/r2")), MetricsArgs::default(), now, &init()).unwrap();
    assert_eq!(told.node.run_dir(), Path::new("/r2"));
    assert_eq!(told.flags, Flags { listen: Some("127.0.0.1:9".parse().unwrap()), ..all() });
}

#[test]
fn what_cannot_be_changed_any_more_is_refused() {
    let failure = Told::merge(None, &place(None), MetricsArgs::default(), all(), &Occasion::Run).unwrap_err();
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

#[test]
fn a_machine_that_joins_says_nothing_that_is_the_clusters() {
    let merge = |flags| Told::merge(None, &place(None), MetricsArgs::default(), flags, &join());
    let failure = merge(said(&["--cluster-range=10.3.0.0/16"])).unwrap_err();
    assert_eq!(
        (failure.exit, failure.why.as_str()),
        (Exit::Usage, "the cluster's ranges were fixed when it was made")
    );
    let told = merge(said(&["--listen=127.0.0.1:1", "--log-engine=sled"])).unwrap();
    assert_eq!(told.flags, said(&["--listen=127.0.0.1:1", "--log-engine=sled"]));
}

#[test]
fn a_worker_does_not_become_a_manager_by_itself() {
    let kept = Sections::new(Path::new("/d")).with(JOINED, &toml::Table::new());
    for occasion in [init(), join(), Occasion::Run] {
        let merged =
            Told::merge(Some(&kept), &place(None), MetricsArgs::default(), Flags::default(), &occasion);
        let failure = merged.unwrap_err();
        assert_eq!((failure.exit, failure.why.as_str()), (Exit::Conflict, "/d is of a worker"));
    }
}

#[tokio::test]
async fn a_forced_new_cluster_says_what_to_do_next_and_is_done_once() {
    let data = tempfile::tempdir().unwrap();
    let nothing = Plan { data_dir: data.path().into(), ..plan(Flags::default(), &machine()) };
    let refused = go_on_alone(&nothing).await.unwrap_err();
    assert_eq!(refused.exit, Exit::NotFound);
    assert!(refused.hint.contains("--data-dir"), "{refused}");
    let (others, uncommitted) = (2, 1);
    let default = Path::new(warren_process::DATA_DIR);
    insta::assert_snapshot!(hint::after_force(Alone::Now { others, uncommitted }, default), @r"
    this manager is the only one of its cluster from now on, without 2 others
    1 further entry of its log counted as committed
    see that no other manager of it runs: two that come back and cannot reach this one would lead another half of it,
    for nodes and people that have not heard of this life; one that reaches this one stops, and joins again with a
    token: what it runs goes on until then, and is stopped and removed when it joins
    then start this one, without --force-new-cluster, with
      warren manager run
    ");
    let again = hint::after_force(Alone::Already, Path::new("/d"));
    assert!(again.contains("already; nothing was changed"), "{again}");
    assert!(again.ends_with("warren manager run --data-dir /d\n"), "{again}");
}

#[tokio::test]
async fn a_join_that_was_cut_off_before_it_was_remembered_is_remembered_by_the_next_one() {
    use warren_security::Token;

    assert!(join().is_told() && init().is_told() && !Occasion::Run.is_told());
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    let keys = crate::ca::Keys::open(&dir_made(&dir), true, std::time::SystemTime::now()).unwrap();
    let others = seat::Introduced { member: 1, id: keys.id, address: "10.0.0.9:8080".parse().unwrap() };
    let joined = seat::Seat::alone(3, keys.identity());
    seat::take(&dir, &seat::Seat { founders: vec![1], managers: vec![others], ..joined }).unwrap();
    let token = Token::generate(keys.authority.digest()).unwrap().reveal().to_string();
    let said = said(&["--listen=127.0.0.1:0", "--advertise=right:8080"]);
    let occasion = Occasion::Join(JoinArgs { address: "10.0.0.9:8080".parse().unwrap(), token });
    let place = PlaceArgs { data_dir: data.path().into(), run_dir: None };
    // `run` finds nothing remembered.
    let merge = |kept: Option<&Sections>, said: Flags, occasion: &Occasion| {
        Told::merge(kept, &place, MetricsArgs::default(), said, occasion)
    };
    assert_eq!(merge(None, Flags::default(), &Occasion::Run).unwrap_err().exit, Exit::NotFound);
    let told = merge(None, said.clone(), &occasion).unwrap();
    let plan = Plan::new(data.path().into(), &told, &machine()).unwrap();
    assert_eq!(begin(&plan, &occasion).await.unwrap(), Begun::Resumed);
    told.put(Sections::new(data.path())).remember().unwrap();
    let kept = Sections::load(data.path()).unwrap();
    assert_eq!(merge(kept.as_ref(), Flags::default(), &Occasion::Run).unwrap().flags, said);
    // Said again with another address, that one counts.
    let right = merge(kept.as_ref(), super::tests::said(&["--advertise=better:1"]), &occasion).unwrap();
    let plan = Plan::new(data.path().into(), &right, &machine()).unwrap();
    assert_eq!(plan.advertised_before().unwrap().to_string(), "better:1");
}

#[tokio::test]
async fn join_over_an_init_that_was_cut_off_names_the_init() {
    use warren_security::Token;

    let (data, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = dir_made(&data.path().join("manager"));
    let now = std::time::SystemTime::now();
    let others = crate::ca::Keys::open(other.path(), true, now).unwrap();
    let token = Token::generate(others.authority.digest()).unwrap().reveal().to_string();
    let occasion = Occasion::Join(JoinArgs { address: "10.0.0.9:8080".parse().unwrap(), token });
    let told =
        Told { node: NodeSection::default(), flags: said(&["--listen=127.0.0.1:0", "--advertise=a:1"]) };
    let plan = Plan::new(data.path().into(), &told, &machine()).unwrap();
    seat::begin_init(&dir).unwrap();
    for is_seated in [false, true] {
        if is_seated {
            let keys = crate::ca::Keys::open(&dir, true, now).unwrap();
            seat::take(&dir, &seat::Seat::first(keys.identity())).unwrap();
        }
        let failure = begin(&plan, &occasion).await.unwrap_err();
        assert!(failure.why.starts_with("`manager init` began to make a cluster in "), "{failure}");
        let complete = format!("`warren manager init --data-dir {}`", data.path().display());
        assert!(failure.hint.contains(&complete), "{failure}");
    }
    seat::finish_init(&dir).unwrap();
    let failure = begin(&plan, &occasion).await.unwrap_err();
    assert!(failure.why.starts_with("it is a manager of another cluster already"), "{failure}");
}

#[test]
fn only_what_a_removed_manager_ran_is_nobodys() {
    let data = tempfile::tempdir().unwrap();
    let dir = dir_made(&data.path().join("manager"));
    let now = std::time::SystemTime::now();
    let keys = crate::ca::Keys::open(&dir, true, now).unwrap();
    keys.ensure_agent(|| Ok(warren_types::NodeId(warren_types::Id(7))), now).unwrap();
    let seat = seat::Seat::first(keys.identity());
    let nodes = || [removed_node, overtaken_node].map(|of| of(data.path()).unwrap().is_some());
    seat::take(&dir, &seat).unwrap();
    assert_eq!(nodes(), [false, false]);
    seat::overtaken(&dir, &seat, 7).unwrap();
    assert_eq!(nodes(), [false, true], "it may be the cluster again");
    seat::lose(&dir, &seat).unwrap();
    assert_eq!(nodes(), [true, false]);
}

fn dir_made(dir: &Path) -> PathBuf {
    std::fs::create_dir_all(dir).unwrap();
    dir.to_owned()
}

#[test]
fn a_manager_has_a_name_and_an_address_before_it_joins() {
    let named = Flags { name: Some("m2".parse().unwrap()), ..Flags::default() };
    assert_eq!(plan(named, &machine()).name.as_str(), "m2");
    assert_eq!(plan(Flags::default(), &machine()).name.as_str(), "m1");
    let nameless = Machine { host_name: "_".into(), ..machine() };
    let told = Told { node: NodeSection::default(), flags: Flags::default() };
    assert_eq!(Plan::new("/d".into(), &told, &nameless).unwrap_err().exit, Exit::Usage);
    let address = |line: &[&str]| plan(said(line), &machine()).advertised_before();
    assert_eq!(address(&["--listen=0.0.0.0:9"]).unwrap().to_string(), "10.0.0.7:9");
    assert_eq!(address(&["--listen=0.0.0.0:0"]).unwrap_err().exit, Exit::Usage, "nobody knows the port yet");
    assert_eq!(address(&["--listen=0.0.0.0:0", "--advertise=a:7"]).unwrap().to_string(), "a:7");
}
