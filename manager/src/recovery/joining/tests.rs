use std::fs;
use std::time::SystemTime;

use warren_security::{CertificateRequest, Identity};

use super::super::seat::Standing;
use super::*;

const MEMBER: MemberId = 3;

fn introduced(member: MemberId) -> Introduced {
    let id = warren_types::ManagerId(warren_types::Id(u128::from(member)));
    Introduced { member, id, address: format!("10.0.0.{member}:8080").parse().unwrap() }
}

/// A cluster that lets machines in.
struct Cluster {
    authority: CertificateAuthority,
    content_key: String,
}

impl Cluster {
    fn new(id: u128) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let content_key = ContentKey::create(&dir.path().join("k")).unwrap().reveal().to_string();
        Self {
            authority: CertificateAuthority::create(&warren_types::Id(id).to_string(), SystemTime::now())
                .unwrap(),
            content_key,
        }
    }

    fn id(&self) -> warren_types::ClusterId {
        self.authority.cluster().parse().unwrap()
    }

    fn sign(&self, key: &PrivateKey, role: Role) -> String {
        let request = CertificateRequest::parse(&CertificateRequest::create(key).unwrap()).unwrap();
        let identity = Identity::new(self.authority.cluster(), role, request.node_id().to_string()).unwrap();
        self.authority.sign(&identity, &request, SystemTime::now()).unwrap()
    }

    fn admit(&self, key: &PrivateKey) -> Result<Admission, NotOurs> {
        let (certificate, authority) = (self.sign(key, Role::Manager), self.authority.to_pem());
        let content_key = &self.content_key;
        let offer = Offer {
            certificate: &certificate,
            authority: &authority,
            content_key,
            member: MEMBER,
            founders: &[1],
            managers: &[introduced(1), introduced(MEMBER)],
        };
        Admission::check(key, &self.authority.roots(), offer)
    }
}

#[test]
fn a_join_that_was_cut_off_at_any_step_is_completed_by_the_next_one_as_the_same_manager() {
    let cluster = Cluster::new(1);
    let steps = ["", AUTHORITY_FILE, CONTENT_FILE, MANAGER_FILE, "member"];
    for cut in 0..steps.len() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("manager");
        let key = begin(&dir).unwrap();
        assert_eq!(begin(&dir).unwrap().pem(), key.pem(), "asked twice");
        cluster.admit(&key).unwrap().complete(&dir).unwrap();
        // What comes after the cut is not there yet.
        files::write_private(&dir.join(JOIN_KEY_FILE), key.pem().as_bytes()).unwrap();
        for later in &steps[cut + 1..] {
            fs::remove_file(dir.join(later)).unwrap();
        }
        match seat::look(&dir).unwrap() {
            Standing::Begun(found) => {
                assert!(cut < 4 && found.pem() == key.pem(), "cut after {:?}", steps[cut]);
                let again = begin(&dir).unwrap();
                cluster.admit(&again).unwrap().complete(&dir).unwrap();
            }
            standing => assert!(cut == 4 && matches!(standing, Standing::Seated(_)), "{standing:?}"),
        }
        finish(&dir).unwrap();
        finish(&dir).unwrap();
        let Standing::Seated(seat) = seat::look(&dir).unwrap() else { panic!("it joined") };
        let managers = vec![introduced(1)];
        let manager = key.node_id().unwrap().to_string().parse().unwrap();
        assert_eq!((seat.member, &seat.founders, &seat.managers), (MEMBER, &vec![1], &managers));
        assert_eq!(seat.owner(), warren_log::Owner { cluster: cluster.id(), manager, member: MEMBER });
        let credentials = Credentials::load(&dir.join(MANAGER_FILE)).unwrap();
        assert_eq!(credentials.identity().id(), key.node_id().unwrap().to_string());
        assert!(!dir.join(JOIN_KEY_FILE).exists());
    }
}

#[test]
fn an_answer_that_is_not_for_this_machine_stores_nothing() {
    let (cluster, other) = (Cluster::new(1), Cluster::new(1));
    let (key, stranger) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let roots = cluster.authority.roots();
    let (authority, foreign) = (cluster.authority.to_pem(), other.authority.to_pem());
    let own = cluster.sign(&key, Role::Manager);
    let good = Offer {
        certificate: &own,
        authority: &authority,
        content_key: &cluster.content_key,
        member: MEMBER,
        founders: &[1],
        managers: &[],
    };
    let refused = |offer| Admission::check(&key, &roots, offer).unwrap_err();
    Admission::check(&key, &roots, good).unwrap();
    assert!(matches!(refused(Offer { authority: &foreign, ..good }), NotOurs::Authority));
    assert!(matches!(refused(Offer { authority: "x", ..good }), NotOurs::AuthorityKey(_)));
    let of_other = other.sign(&key, Role::Manager);
    assert!(matches!(refused(Offer { certificate: &of_other, ..good }), NotOurs::Certificate(_)));
    let of_stranger = cluster.sign(&stranger, Role::Manager);
    assert!(matches!(refused(Offer { certificate: &of_stranger, ..good }), NotOurs::Certificate(_)));
    let of_worker = cluster.sign(&key, Role::Worker);
    assert!(matches!(refused(Offer { certificate: &of_worker, ..good }), NotOurs::Identity { .. }));
    assert!(matches!(refused(Offer { content_key: "x", ..good }), NotOurs::ContentKey(_)));
    for (member, founders) in [(0, &[1][..]), (3, &[]), (3, &[0])] {
        assert!(matches!(refused(Offer { member, founders, ..good }), NotOurs::Seat));
    }
}

#[test]
fn what_an_overtaken_manager_was_stays_until_it_is_let_in() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    let first = begin(&dir).unwrap();
    let cluster = Cluster::new(1);
    cluster.admit(&first).unwrap().complete(&dir).unwrap();
    let Standing::Seated(was) = seat::look(&dir).unwrap() else { panic!("it joined") };
    seat::overtaken(&dir, &was, 7).unwrap();
    fs::create_dir(dir.join("log")).unwrap();
    let key = begin(&dir).unwrap();
    assert_ne!(key.pem(), first.pem(), "it is another manager");
    for _ in 0..2 {
        assert_eq!(begin(&dir).unwrap().pem(), key.pem(), "the next try is of the same");
        let standing = seat::look(&dir).unwrap();
        assert!(matches!(&standing, Standing::Overtaken(seat, 7) if *seat == was), "{standing:?}");
        assert!(dir.join("log").exists() && dir.join(AUTHORITY_FILE).exists());
    }
    for _ in 0..2 {
        begin_anew(&dir, &key).unwrap();
        assert!(matches!(seat::look(&dir).unwrap(), Standing::Begun(found) if found.pem() == key.pem()));
        assert!(!dir.join("log").exists() && !dir.join(AUTHORITY_FILE).exists());
    }
    cluster.admit(&key).unwrap().complete(&dir).unwrap();
    assert!(matches!(seat::look(&dir).unwrap(), Standing::Seated(_)));
}

#[test]
fn a_directory_that_cannot_be_renamed_is_refused_before_the_machine_is_let_in() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    fs::create_dir(&dir).unwrap();
    check_replaceable(&dir).unwrap();
    let link = data.path().join("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    let linked = check_replaceable(&link).unwrap_err().to_string();
    assert!(linked.contains("link is a symbolic link"), "{linked}");
    // Something is mounted there on every Linux.
    let mounted = check_replaceable(Path::new("/proc")).unwrap_err().to_string();
    assert!(mounted.contains("/proc is a mount point"), "{mounted}");
}

#[test]
fn what_a_removed_manager_was_is_forgotten_whole() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    let left = data.path().join("manager.gone");
    for leftover in [false, true] {
        let key = begin(&dir).unwrap();
        Cluster::new(1).admit(&key).unwrap().complete(&dir).unwrap();
        fs::create_dir(dir.join("snapshots")).unwrap();
        if leftover {
            fs::create_dir_all(left.join("half")).unwrap();
        }
        forget(&dir).unwrap();
        assert!(!dir.exists() && !left.exists());
        // Killed after the rename: whatever is begun next finds it.
        fs::create_dir_all(left.join("half")).unwrap();
        clean(&dir).unwrap();
        clean(&dir).unwrap();
        assert!(!left.exists());
        assert!(matches!(seat::look(&dir).unwrap(), Standing::Nothing));
        assert_ne!(begin(&dir).unwrap().pem(), key.pem(), "it is another manager from now on");
        forget(&dir).unwrap();
    }
}
