//! Why certificates of nodes, managers and users are accepted or refused.

use warren_core::why::{CertificateHolder, CertificateReport};

use super::*;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// 90 days.
const LIFETIME_MS: u64 = 90 * 24 * 60 * 60 * 1000;
const HASH: TokenHash = TokenHash([3; 32]);
const KEY: PublicKeyHash = PublicKeyHash([0x3f; 32]);

fn report(expires_at: Timestamp, error: &str) -> CertificateReport {
    let renewal_error = Some(error.to_owned()).filter(|error| !error.is_empty());
    let issued_at = Timestamp(expires_at.0 - LIFETIME_MS);
    CertificateReport { validity: Some(issued_at..expires_at), renewal_error }
}

/// What node 1 and manager 1 report.
fn reporting(expires_at: Timestamp, error: &str) -> Observations {
    Observations {
        node_certificates: [(node_id(1), report(expires_at, error))].into(),
        manager_certificates: [(manager_id(1), report(expires_at, error))].into(),
        ..Observations::default()
    }
}

fn manager_id(number: u64) -> ManagerId {
    ManagerId(Id(u128::from(100 + number)))
}

/// Managers 1 to `managers`, each without a node, and node 1.
fn cluster(managers: u64) -> TestCluster {
    let mut world = TestCluster::new();
    let (level, at) = (FEATURE_LEVEL, world.now);
    let token = Command::CreateToken {
        id: TokenId(Id(5)),
        role: NodeRole::Manager,
        hash: HASH,
        expires_at: None,
        max_uses: None,
        labels: Default::default(),
        at,
    };
    world.accept(token);
    for number in 1..=managers {
        let (id, name) = (manager_id(number), format!("m{number}").parse().unwrap());
        let address = format!("10.0.0.{number}:8080").parse().unwrap();
        world.accept(match number {
            1 => Command::RegisterMember { member: 1, id, name, address, level, at },
            _ => Command::JoinManager { hash: HASH, id, name, address, level, at },
        });
    }
    world.node(1, resources(4000, 1024));
    world
}

fn create_user(world: &mut TestCluster, name: &str, expires_at: Option<Timestamp>) {
    let (id, role, at) = (UserId(Id(9)), UserRole::Operator, world.now);
    let (name, login_expires_at) = (name.parse().unwrap(), at + Duration::from_secs(3600));
    world.accept(Command::CreateUser {
        id,
        name,
        role,
        login_hash: TokenHash([1; 32]),
        login_expires_at,
        expires_at,
        at,
    });
}

/// A user that is logged in with [`KEY`].
fn with_user(expires_at: Option<Timestamp>) -> TestCluster {
    let mut world = cluster(1);
    create_user(&mut world, "ann", expires_at);
    world.accept(Command::LoginUser { hash: TokenHash([1; 32]), key: KEY, at: world.now });
    world
}

#[test]
fn machines_tell_how_far_the_renewal_is() {
    let world = cluster(1);
    let cases: [(Duration, &str, Severity, &str, &[&str]); 6] = [
        (
            DAY * 60,
            "",
            Fine,
            "certificate-valid",
            &["is valid until 2027-01-19T14:30:00Z", "it is renewed between"],
        ),
        (DAY * 25, "", Waiting, "renewal-due", &["it is valid until"]),
        (
            DAY * 22,
            "",
            Problem,
            "renewal-overdue",
            &["was not renewed in time", "warren cluster background-tasks"],
        ),
        (DAY * 60, "disk full", Problem, "renewal-failing", &["its renewal fails: disk full", "by itself"]),
        (DAY * 22, "disk full", Problem, "renewal-failing", &["its renewal fails: disk full"]),
        (Duration::ZERO, "", Problem, "certificate-expired", &["has expired"]),
    ];
    for (left, error, severity, code, mentions) in cases {
        let observed = reporting(world.now + left, error);
        for object in ["certificate/node-1", "certificate/m1"] {
            check_observed(&world, &observed, object, severity, code, mentions);
        }
        let (node, shown) = match severity {
            Problem => (Problem, format!("node-ready({code})")),
            _ => (Fine, "node-ready".to_owned()),
        };
        check_observed(&world, &observed, "node/node-1", node, &shown, &[]);
    }
    let expired = reporting(world.now, "");
    let mend = ["check the clock of the machine at", "also one that has expired"];
    check_observed(&world, &expired, "certificate/node-1", Problem, "certificate-expired", &mend);
    let mend = ["check the clock of its machine"];
    check_observed(&world, &expired, "certificate/m1", Problem, "certificate-expired", &mend);
    let unknown = "certificate-not-reported";
    check(&world, "certificate/node-1", Waiting, unknown, &["with each heartbeat"]);
    check(&world, "certificate/m1", Problem, unknown, &["manager m1 does not answer"]);
}

#[test]
fn renewals_are_judged_by_the_lifetime_of_the_certificate() {
    let mut world = cluster(1);
    let change = ClusterSettingsChange { node_certificate_lifetime: Some(DAY * 30), ..Default::default() };
    world.accept(Command::UpdateCluster { version: None, change, at: world.now });
    // Issued for 90 days.
    let observed = reporting(world.now + DAY * 60, "");
    let next = "it was issued for 2160 hours, and the next one is for 720 hours";
    check_observed(&world, &observed, "certificate/node-1", Fine, "certificate-valid", &[next]);
    let minute = Duration::from_secs(60);
    for (left, severity, code) in [
        (minute * 30, Fine, "certificate-valid"),
        (minute * 18, Waiting, "renewal-due"),
        (minute * 6, Problem, "renewal-overdue"),
    ] {
        let end = world.now + left;
        let validity = Some(Timestamp(end.0 - 3_600_000)..end);
        let certificate = CertificateReport { validity, renewal_error: None };
        let node_certificates = [(node_id(1), certificate)].into();
        let observed = Observations { node_certificates, ..Observations::default() };
        check_observed(&world, &observed, "certificate/node-1", severity, code, &[]);
    }
}

#[test]
fn nodes_that_are_away_renew_when_they_return() {
    let mut world = cluster(1);
    world.set_down(1);
    world.advance_time(DAY * 100);
    let unknown = "certificate-not-reported";
    // It may also be away because its certificate is refused.
    let shown =
        ["renewed when the machine runs again", "warren why node/node-1", "the log of its agent says"];
    check(&world, "certificate/node-1", Waiting, unknown, &shown);
    check(&world, "node/node-1", Problem, "node-down", &[]);
}

#[test]
fn hybrid_manager_tells_of_its_node() {
    let mut world = cluster(1);
    let (id, at) = (node_id(2), world.now);
    let (name, description) = ("m1".parse().unwrap(), description(resources(1000, 512)));
    let (role, taints) = (NodeRole::Manager, Default::default());
    world.accept(Command::RegisterNode { id, name, role, description, taints, at });
    world.connect(2);
    let mut observed = reporting(world.now + DAY * 60, "");
    observed.node_certificates.insert(id, report(world.now, ""));
    let codes = "certificate-valid(certificate-expired)";
    check_observed(&world, &observed, "certificate/m1", Problem, codes, &["check the clock of its machine"]);
    check_observed(&world, &observed, "certificate/node/m1", Problem, "certificate-expired", &[]);
    world.set_down(2);
    world.advance_time(DAY * 100);
    check(&world, "certificate/node/m1", Waiting, "certificate-not-reported", &[]);
}

#[test]
fn machines_that_are_gone_are_refused() {
    let mut world = cluster(3);
    world.accept(Command::RemoveMember { member: 3, at: world.now });
    check(&world, "certificate/m3", Waiting, "manager-removing", &["warren manager ls"]);
    world.accept(Command::DeleteMember { term: TERM, member: 3 });
    let index = world.state.applied().index;
    let since = format!("warren events --since {}", index - 1);
    let shown = ["refused in the TLS handshake", since.as_str(), "warren cluster ca rotate"];
    check(&world, &format!("certificate/{}", manager_id(3)), Problem, "manager-departed", &shown);
    world.remove_node(1);
    let shown = ["refused in the TLS handshake", "warren token create --role worker"];
    check(&world, &format!("certificate/{}", node_id(1)), Problem, "node-removed", &shown);
}

#[test]
fn replaced_authorities_are_told() {
    let mut world = with_user(None);
    let (digest, current) = (CaDigest::from_bytes([2; 32]), CaDigest::from_bytes([1; 32]));
    let (sealed, certificate, at) = (sealed(1), "old".to_owned(), world.now);
    world.accept(Command::Ca(CaCommand::Begin { digest, sealed, current, certificate, at }));
    let observed = reporting(world.now + DAY * 60, "");
    let behind = "certificate-valid(authority-replaced)";
    let shown = ["the managers come first", "warren cluster ca status"];
    for object in ["certificate/node-1", "certificate/m1"] {
        check_observed(&world, &observed, object, Waiting, behind, &shown);
    }
    let holder = CaHolder::Manager(1);
    world.accept(Command::Ca(CaCommand::RecordRenewal { digest, holder, at }));
    world.accept(Command::Ca(CaCommand::Advance { term: TERM, digest, phase: CaPhase::Nodes, at }));
    let newest = format!("by the newest certificate authority, {digest}");
    check_observed(&world, &observed, "certificate/m1", Fine, "certificate-valid", &[&newest]);
    let shown = ["a node follows when it is connected"];
    check_observed(&world, &observed, "certificate/node-1", Waiting, behind, &shown);
    check(&world, "certificate/ann", Waiting, "keys-listed(key-listed(authority-replaced))", &shown);
    let holder = CaHolder::Node(node_id(1));
    world.accept(Command::Ca(CaCommand::RecordRenewal { digest, holder, at }));
    check_observed(&world, &observed, "certificate/node-1", Fine, "certificate-valid", &[&newest]);
}

#[test]
fn users_are_told_by_their_keys() {
    let mut world = cluster(1);
    create_user(&mut world, "ann", None);
    check(
        &world,
        "certificate/ann",
        Waiting,
        "not-logged-in",
        &["until 2026-11-20T15:30:00Z", "warren login"],
    );
    world.advance_time(Duration::from_secs(3600));
    check(&world, "certificate/ann", Problem, "no-listed-key", &["unused", "warren user token ann"]);

    let mut world = with_user(None);
    let shown = ["user ann has 1 listed key", "valid for 24 hours", "managers do not record"];
    check(&world, "certificate/ann", Fine, "keys-listed(key-listed)", &shown);
    check(&world, "certificate/3f3f3f3f", Fine, "key-listed", &["key 3f3f3f3f3f3f3f3f of ann is listed"]);
    world.accept(Command::Key(KeyCommand::Revoke { key: KEY, at: world.now }));
    check(&world, "certificate/ann", Problem, "no-listed-key(key-revoked)", &["refused for good"]);
    let shown = ["user ann exists; listed keys: 0", "until 2027-11-21T14:30:00Z", "warren user token ann"];
    check(&world, "certificate/3f3f3f3f", Problem, "key-revoked", &shown);
    world.accept(Command::RemoveUser { id: UserId(Id(9)), at: world.now });
    let shown = ["there is no user ann any more", "warren user create ann"];
    check(&world, "certificate/ann", Problem, "key-revoked", &shown);

    let end = Timestamp(1_795_185_000_000) + DAY;
    let mut world = with_user(Some(end));
    let shown = ["the user and all its certificates end at 2026-11-21T14:30:00Z"];
    check(&world, "certificate/ann", Fine, "keys-listed(key-listed)", &shown);
    world.advance_time(DAY);
    let shown = ["user ann has expired", "warren user rm ann", "warren user create ann --role operator"];
    check(&world, "certificate/ann", Problem, "user-expired", &shown);
    check(&world, "certificate/3f3f3f3f", Problem, "user-expired", &[]);
}

#[test]
fn keys_of_administrators_are_told() {
    let mut world = cluster(3);
    let at = Timestamp(1_795_185_000_000);
    world.accept(Command::SetAdministratorKey { member: 3, key: KEY, at });
    check(&world, "certificate/3f3f3f3f", Fine, "key-listed", &["of the administrator of m3 is listed"]);
    world.accept(Command::Key(KeyCommand::Revoke { key: KEY, at: world.now }));
    check(&world, "certificate/3f3f3f3f", Problem, "key-revoked", &["another key by itself", "the socket"]);
}

#[test]
fn holders_are_found_by_name_kind_id_and_key() {
    let mut world = cluster(1);
    create_user(&mut world, "node-1", None);
    let find = |reference: &str| CertificateHolder::find(&world.state, reference);
    let refused = find("node-1").unwrap_err().to_string();
    let several = "certificate/node/node-1, certificate/user/node-1";
    assert!(refused.contains(several), "{refused}");
    assert_eq!(find("user/node-1"), Ok(CertificateHolder::User(UserId(Id(9)))));
    assert_eq!(find("node/node-1"), Ok(CertificateHolder::Node(node_id(1))));
    assert_eq!(find("m1"), Ok(CertificateHolder::Manager(manager_id(1))));
    assert_eq!(find(&node_id(1).to_string()), Ok(CertificateHolder::Node(node_id(1))));
    for missing in ["nobody", "manager/node-1", "service/m1", "3f3f3f3f", "node/", ADMINISTRATOR] {
        let refused = find(missing).unwrap_err().to_string();
        assert!(refused.starts_with("no manager, node or user is named"), "{missing}: {refused}");
    }
}

#[test]
fn text_of_a_certificate_keeps_its_shape() {
    let world = with_user(None);
    let WhyAnswer { noun, name, desired, cause, .. } =
        answer(&world, &Observations::default(), "certificate/ann");
    let shown = format!("{noun}/{name}\n{desired}\n{}", texts(&cause));
    let shown: Vec<&str> = shown.lines().filter(|line| !line.is_empty()).collect();
    let expected = [
        "certificate/ann",
        "certificates for its listed keys are accepted",
        "user ann has 1 listed key",
        "its certificates are valid for 24 hours, or as long as `warren context export --ttl` said; the CLI renews \
         them with the key, and managers do not record which they issued",
        "key 3f3f3f3f3f3f3f3f of ann is listed",
    ];
    assert_eq!(shown, expected);
}
