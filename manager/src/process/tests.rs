use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use clap::Parser;
use warren_bootstrap::force_new_cluster::ForceNewClusterOutcome;

use super::*;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    flags: ManagerFlags,
}

fn parse_flags(line: &[&str]) -> ManagerFlags {
    Cli::try_parse_from(["x"].iter().chain(line)).unwrap().flags
}

fn all_flags() -> ManagerFlags {
    parse_flags(&[
        "--listen=127.0.0.1:1",
        "--advertise=a:2",
        "--cluster-range=10.1.0.0/16",
        "--cluster-range=10.2.0.0/16",
        "--log-engine=sled",
    ])
}

fn init_reason() -> ManagerStartReason {
    ManagerStartReason::Init
}

fn join_reason() -> ManagerStartReason {
    ManagerStartReason::Join(ManagerJoinArgs { address: "10.0.0.7:8080".parse().unwrap(), token: "T".into() })
}

fn path_args(run_dir: Option<&str>) -> DirArgs {
    DirArgs { data_dir: "/d".into(), run_dir: run_dir.map(PathBuf::from) }
}

fn machine() -> HostInfo {
    HostInfo { host_name: "m1".into(), address: Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7))), is_root: true }
}

fn plan(flags: ManagerFlags, machine: &HostInfo) -> ManagerSetup {
    ManagerSetup::new("/d".into(), &ManagerSettings { node: NodeSection::default(), flags }, machine).unwrap()
}

#[test]
fn data_dir_in_use_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("data");
    let taken = || CommandError::new(ExitKind::Failed, START_FAILED, "the address is taken", "");
    let why = || or_data_dir_in_use(&place, taken()).why;
    assert_eq!(why(), "the address is taken");
    assert!(!place.exists(), "to ask makes nothing");
    let held = DataDir::open(&place).unwrap();
    assert!(why().contains("is in use by process"), "{}", why());
    assert_eq!(or_data_dir_in_use(&place, taken()).kind, ExitKind::Conflict);
    drop(held);
    assert_eq!(why(), "the address is taken");
}

#[test]
fn settings_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let metrics_listen = Some("none".parse().unwrap());
    let reported = ManagerSettings {
        node: NodeSection { run_dir: Some("/r".into()), metrics_listen },
        flags: all_flags(),
    };
    reported.add_to(NodeFile::new(dir.path())).save().unwrap();
    let kept = NodeFile::load(dir.path()).unwrap();
    assert_eq!(
        ManagerSettings::merge(
            kept.as_ref(),
            &path_args(None),
            MetricsArgs::default(),
            ManagerFlags::default(),
            &ManagerStartReason::Run
        )
        .unwrap(),
        reported
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
fn new_flags_override_saved_settings() {
    let kept = ManagerSettings { node: NodeSection::default(), flags: all_flags() }
        .add_to(NodeFile::new(Path::new("/d")));
    let now = parse_flags(&["--listen=127.0.0.1:9", "--cluster-range=10.1.0.0/16,10.2.0.0/16"]);
    let reported = ManagerSettings::merge(
        Some(&kept),
        &path_args(Some("/r2")),
        MetricsArgs::default(),
        now,
        &init_reason(),
    )
    .unwrap();
    assert_eq!(reported.node.run_dir(), Path::new("/r2"));
    assert_eq!(reported.flags, ManagerFlags { listen: Some("127.0.0.1:9".parse().unwrap()), ..all_flags() });
}

#[test]
fn fixed_setting_cannot_change() {
    let failure = ManagerSettings::merge(
        None,
        &path_args(None),
        MetricsArgs::default(),
        all_flags(),
        &ManagerStartReason::Run,
    )
    .unwrap_err();
    assert_eq!((failure.kind, failure.why.as_str()), (ExitKind::NotFound, "/d has no manager"));
    for (old, now, why) in [
        (
            all_flags(),
            "--cluster-range=10.3.0.0/16",
            "--cluster-range is 10.3.0.0/16, but the cluster was created with 10.1.0.0/16,10.2.0.0/16",
        ),
        (
            ManagerFlags::default(),
            "--cluster-range=10.3.0.0/16",
            "--cluster-range is 10.3.0.0/16, but the cluster was created with the default range",
        ),
        (
            all_flags(),
            "--log-engine=redb",
            "--log-engine is redb, but the manager's log was created with sled",
        ),
        (
            ManagerFlags::default(),
            "--log-engine=sled",
            "--log-engine is sled, but the manager's log was created with redb",
        ),
    ] {
        let failure = parse_flags(&[now]).merge_over(old).unwrap_err();
        assert_eq!((failure.kind, failure.why.as_str()), (ExitKind::Conflict, why));
    }
    assert_eq!(
        parse_flags(&["--log-engine=redb"]).merge_over(ManagerFlags::default()).unwrap(),
        ManagerFlags::default()
    );
}

#[test]
fn default_manager_is_reachable() {
    let plan = plan(ManagerFlags::default(), &machine());
    assert_eq!(plan.listen.to_string(), "0.0.0.0:8080");
    assert_eq!(plan.run_dir, Path::new("/run/warren"));
    assert_eq!(plan.cluster_ranges[0].to_string(), "10.210.0.0/16");
    assert_eq!(plan.advertised(plan.listen), "10.0.0.7:8080");
    assert_eq!(ManagerSetup::local_address(plan.listen), "127.0.0.1:8080");
}

#[test]
fn single_listen_address_is_advertised() {
    let plan = plan(parse_flags(&["--listen=10.0.0.8:9000"]), &machine());
    assert_eq!(plan.advertised(plan.listen), "10.0.0.8:9000");
    assert_eq!(ManagerSetup::local_address(plan.listen), "10.0.0.8:9000");
}

#[test]
fn advertise_address_may_differ_from_listen() {
    let advertised = |text: &str| {
        let plan = plan(parse_flags(&["--advertise", text]), &machine());
        plan.advertised(plan.listen)
    };
    assert_eq!(advertised("example.org"), "example.org:8080");
    assert_eq!(advertised("example.org:80"), "example.org:80");
    assert_eq!(advertised("fd00::1"), "[fd00::1]:8080");
    let without_address = HostInfo { address: None, ..machine() };
    let plan = plan(ManagerFlags::default(), &without_address);
    assert_eq!(plan.advertised(plan.listen), "127.0.0.1:8080");
}

#[test]
fn join_rejects_cluster_wide_flags() {
    let merge =
        |flags| ManagerSettings::merge(None, &path_args(None), MetricsArgs::default(), flags, &join_reason());
    let failure = merge(parse_flags(&["--cluster-range=10.3.0.0/16"])).unwrap_err();
    assert_eq!(
        (failure.kind, failure.why.as_str()),
        (ExitKind::Usage, "the cluster's ranges are fixed at creation")
    );
    let reported = merge(parse_flags(&["--listen=127.0.0.1:1", "--log-engine=sled"])).unwrap();
    assert_eq!(reported.flags, parse_flags(&["--listen=127.0.0.1:1", "--log-engine=sled"]));
}

#[test]
fn worker_data_dir_is_refused() {
    let kept = NodeFile::new(Path::new("/d")).with_section(JOINED_SECTION, &toml::Table::new());
    for occasion in [init_reason(), join_reason(), ManagerStartReason::Run] {
        let merged = ManagerSettings::merge(
            Some(&kept),
            &path_args(None),
            MetricsArgs::default(),
            ManagerFlags::default(),
            &occasion,
        );
        let failure = merged.unwrap_err();
        assert_eq!((failure.kind, failure.why.as_str()), (ExitKind::Conflict, "/d belongs to a worker"));
    }
}

#[tokio::test]
async fn force_new_cluster_runs_once() {
    let data = tempfile::tempdir().unwrap();
    let nothing = ManagerSetup { data_dir: data.path().into(), ..plan(ManagerFlags::default(), &machine()) };
    let refused = force_new_cluster(&nothing, None).await.unwrap_err();
    assert_eq!(refused.kind, ExitKind::NotFound);
    assert!(refused.hint.contains("--data-dir"), "{refused}");
    let (others, uncommitted) = (2, 1);
    let default = Path::new(warren_daemon::DATA_DIR);
    let created = ForceNewClusterOutcome::Created { others, uncommitted };
    insta::assert_snapshot!(hints::after_force_new_cluster(created, default), @r"
    this manager is now the only member of its cluster, without 2 others
    1 further entry of its log counted as committed
    make sure that none of the other managers runs: two of them that cannot reach this one elect their own
    leader for nodes and users that do not know this incarnation; one that reaches this manager stops and must
    join again with a token: its tasks keep running until then, and are stopped and removed when it joins
    then start this manager without --force-new-cluster:
      warren manager run
    ");
    let again = hints::after_force_new_cluster(ForceNewClusterOutcome::Unchanged, Path::new("/d"));
    assert!(again.contains("already; nothing was changed"), "{again}");
    assert!(again.ends_with("warren manager run --data-dir /d\n"), "{again}");
}

#[tokio::test]
async fn interrupted_join_is_saved_on_retry() {
    use warren_security::JoinToken;

    assert!(
        join_reason().accepts_new_settings()
            && init_reason().accepts_new_settings()
            && !ManagerStartReason::Run.accepts_new_settings()
    );
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    let keys =
        warren_bootstrap::ca::ManagerKeys::open(&dir_made(&dir), true, std::time::SystemTime::now()).unwrap();
    let others = member_identity::BootstrapPeer {
        member_id: 1,
        id: keys.id,
        address: "10.0.0.9:8080".parse().unwrap(),
    };
    let joined = member_identity::MemberIdentity::sole_voter(3, keys.identity());
    member_identity::save_identity(
        &dir,
        &member_identity::MemberIdentity { founders: vec![1], bootstrap_peers: vec![others], ..joined },
    )
    .unwrap();
    let token = JoinToken::generate(keys.authority.load().digest()).unwrap().reveal().to_string();
    let output = parse_flags(&["--listen=127.0.0.1:0", "--advertise=right:8080"]);
    let occasion =
        ManagerStartReason::Join(ManagerJoinArgs { address: "10.0.0.9:8080".parse().unwrap(), token });
    let place = DirArgs { data_dir: data.path().into(), run_dir: None };
    // `run` finds no stored settings.
    let merge = |kept: Option<&NodeFile>, text: ManagerFlags, occasion: &ManagerStartReason| {
        ManagerSettings::merge(kept, &place, MetricsArgs::default(), text, occasion)
    };
    assert_eq!(
        merge(None, ManagerFlags::default(), &ManagerStartReason::Run).unwrap_err().kind,
        ExitKind::NotFound
    );
    let reported = merge(None, output.clone(), &occasion).unwrap();
    let plan = ManagerSetup::new(data.path().into(), &reported, &machine()).unwrap();
    assert_eq!(ensure_member(&plan, &occasion).await.unwrap(), ManagerStartOutcome::Resumed);
    reported.add_to(NodeFile::new(data.path())).save().unwrap();
    let kept = NodeFile::load(data.path()).unwrap();
    assert_eq!(
        merge(kept.as_ref(), ManagerFlags::default(), &ManagerStartReason::Run).unwrap().flags,
        output
    );
    // A repeated command with another address updates it.
    let right =
        merge(kept.as_ref(), super::tests::parse_flags(&["--advertise=better:1"]), &occasion).unwrap();
    let plan = ManagerSetup::new(data.path().into(), &right, &machine()).unwrap();
    assert_eq!(plan.join_address().unwrap().to_string(), "better:1");
}

#[tokio::test]
async fn join_over_pending_init_is_refused() {
    use warren_security::JoinToken;

    let (data, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = dir_made(&data.path().join("manager"));
    let now = std::time::SystemTime::now();
    let others = warren_bootstrap::ca::ManagerKeys::open(other.path(), true, now).unwrap();
    let token = JoinToken::generate(others.authority.load().digest()).unwrap().reveal().to_string();
    let occasion =
        ManagerStartReason::Join(ManagerJoinArgs { address: "10.0.0.9:8080".parse().unwrap(), token });
    let reported = ManagerSettings {
        node: NodeSection::default(),
        flags: parse_flags(&["--listen=127.0.0.1:0", "--advertise=a:1"]),
    };
    let plan = ManagerSetup::new(data.path().into(), &reported, &machine()).unwrap();
    member_identity::begin_init(&dir).unwrap();
    for is_seated in [false, true] {
        if is_seated {
            let keys = warren_bootstrap::ca::ManagerKeys::open(&dir, true, now).unwrap();
            member_identity::save_identity(&dir, &member_identity::MemberIdentity::founder(keys.identity()))
                .unwrap();
        }
        let failure = ensure_member(&plan, &occasion).await.unwrap_err();
        assert!(failure.why.starts_with("`manager init` in "), "{failure}");
        let complete = format!("`warren manager init --data-dir {}`", data.path().display());
        assert!(failure.hint.contains(&complete), "{failure}");
    }
    member_identity::finish_init(&dir).unwrap();
    let failure = ensure_member(&plan, &occasion).await.unwrap_err();
    assert!(failure.why.starts_with("this machine is a manager of another cluster already"), "{failure}");
}

#[test]
fn removed_node_needs_removed_manager() {
    let data = tempfile::tempdir().unwrap();
    let dir = dir_made(&data.path().join("manager"));
    let now = std::time::SystemTime::now();
    let keys = warren_bootstrap::ca::ManagerKeys::open(&dir, true, now).unwrap();
    keys.ensure_agent(|| Ok(Some(warren_types::NodeId(warren_types::Id(7)))), now).unwrap();
    let identity = member_identity::MemberIdentity::founder(keys.identity());
    let nodes = || {
        [removed_node(data.path()), superseded_node(data.path(), None)].map(|node| node.unwrap().is_some())
    };
    member_identity::save_identity(&dir, &identity).unwrap();
    assert_eq!(nodes(), [false, false]);
    member_identity::mark_superseded(&dir, &identity, 7).unwrap();
    assert_eq!(nodes(), [false, true], "it may be the cluster again");
    keys.mark_removed(&identity).unwrap();
    assert_eq!(nodes(), [true, false]);
}

#[tokio::test]
async fn locked_manager_waits_and_its_health_says_so() {
    use std::time::SystemTime;

    use warren_bootstrap::ca::ManagerKeys;
    use warren_bootstrap::member_identity::MemberIdentity;
    use warren_client::{Client, ClientTarget};
    use warren_security::seal::Keyring;

    let data = tempfile::tempdir().unwrap();
    let dir = dir_made(&data.path().join("manager"));
    let run_dir = data.path().join("run");
    let locked = ManagerSetup {
        data_dir: data.path().into(),
        run_dir: run_dir.clone(),
        ..plan(ManagerFlags::default(), &machine())
    };
    let telemetry = Telemetry::with_components(&[COMPONENT]);
    let mut signals = ShutdownSignals::listen(START_FAILED).unwrap();
    let keys = ManagerKeys::open(&dir, true, SystemTime::now()).unwrap();
    member_identity::save_identity(&dir, &MemberIdentity::founder(keys.identity())).unwrap();
    Keyring::prepare(keys.files(), &Default::default()).unwrap().commit().unwrap();
    let state = await_unlock(&locked, &telemetry, &mut signals).await.unwrap();
    assert!(matches!(state, LockState::Unlocked(None)), "{state:?}");

    let key = UnlockKey::generate();
    keys.lock_with(Some(&key)).unwrap();
    assert_eq!(needed_unlock_key(data.path()).unwrap(), Some(key.id()));
    let unlocking = async {
        let why = ["manager: lock: locked: run `warren manager unlock` on this machine"];
        assert_eq!(
            (telemetry.unhealthy().await, telemetry.unready().await),
            (why.map(str::to_owned).to_vec(), why.map(str::to_owned).to_vec())
        );
        let client =
            Client::connect(&ClientTarget::Unix { socket: run_dir.join("warren.sock") }).await.unwrap();
        client.manager_lock().unlock(&UnlockKey::generate()).await.unwrap_err();
        client.manager_lock().unlock(&key).await.unwrap();
    };
    let (state, ()) = tokio::join!(await_unlock(&locked, &telemetry, &mut signals), unlocking);
    let state = state.unwrap();
    assert!(matches!(&state, LockState::Unlocked(Some(found)) if found.id() == key.id()), "{state:?}");
    assert!(telemetry.unhealthy().await.is_empty());
    assert_eq!(telemetry.unready().await, ["manager: lock: is being started"]);
}

fn dir_made(dir: &Path) -> PathBuf {
    std::fs::create_dir_all(dir).unwrap();
    dir.to_owned()
}

#[test]
fn join_requires_name_and_address() {
    let named = ManagerFlags { name: Some("m2".parse().unwrap()), ..ManagerFlags::default() };
    assert_eq!(plan(named, &machine()).name.as_str(), "m2");
    assert_eq!(plan(ManagerFlags::default(), &machine()).name.as_str(), "m1");
    let nameless = HostInfo { host_name: "_".into(), ..machine() };
    let reported = ManagerSettings { node: NodeSection::default(), flags: ManagerFlags::default() };
    assert_eq!(ManagerSetup::new("/d".into(), &reported, &nameless).unwrap_err().kind, ExitKind::Usage);
    let address = |line: &[&str]| plan(parse_flags(line), &machine()).join_address();
    assert_eq!(address(&["--listen=0.0.0.0:9"]).unwrap().to_string(), "10.0.0.7:9");
    assert_eq!(
        address(&["--listen=0.0.0.0:0"]).unwrap_err().kind,
        ExitKind::Usage,
        "nobody knows the port yet"
    );
    assert_eq!(address(&["--listen=0.0.0.0:0", "--advertise=a:7"]).unwrap().to_string(), "a:7");
}

/// The golden file is never changed: a later format gets one of its own.
#[test]
fn settings_of_version_1_are_readable() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("node.toml"), include_str!("golden/node.1.toml")).unwrap();
    let kept = NodeFile::load(dir.path()).unwrap().unwrap();
    let node = NodeSection {
        run_dir: Some("/run/warren-2".into()),
        metrics_listen: Some("127.0.0.1:9091".parse().unwrap()),
    };
    assert_eq!(kept.section::<NodeSection>(NODE_SECTION).unwrap(), Some(node));
    let flags = ManagerFlags {
        listen: Some("0.0.0.0:8080".parse().unwrap()),
        advertise: Some("10.0.0.7:8080".parse().unwrap()),
        cluster_range: vec!["10.3.0.0/16".parse().unwrap()],
        data_plane: Some("wireguard".parse().unwrap()),
        log_engine: Some("sled".parse().unwrap()),
        docker_socket: Some("docker.sock".parse().unwrap()),
        docker_listen: Some("0.0.0.0:2376".parse().unwrap()),
        accept_data_loss: false,
        name: Some("m1".parse().unwrap()),
        insecure_registry: vec!["registry.example:5000".into()],
    };
    assert_eq!(kept.section::<ManagerFlags>(MANAGER_SECTION).unwrap(), Some(flags));
}
