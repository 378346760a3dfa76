use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use warren_types::NodeRole;

use super::*;
use crate::{CertificateAuthority, CertificateRequest, Identity, Role};

const MONTH: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const FILES: [&str; 3] = [KEY.name, ROOTS.name, CERTIFICATE.name];

fn authority() -> CertificateAuthority {
    CertificateAuthority::create("c1x", SystemTime::now()).unwrap()
}

/// What a manager does for the holder of the key.
fn sign(authority: &CertificateAuthority, key: &PrivateKey, lifetime: Duration) -> String {
    let request = CertificateRequest::parse(&CertificateRequest::create(key).unwrap()).unwrap();
    authority.sign_node(NodeRole::Worker, &request, SystemTime::now(), lifetime).unwrap()
}

fn join(store: &MembershipStore, authority: &CertificateAuthority) -> Credentials {
    let key = store.ensure_key().unwrap();
    store.complete(&authority.roots(), &sign(authority, &key, MONTH)).unwrap()
}

fn member(store: &MembershipStore) -> (Credentials, Roots) {
    match store.load().unwrap() {
        NodeMembership::Member { credentials, roots } => (credentials, roots),
        other => panic!("wanted a member, found {other:?}"),
    }
}

fn store() -> (tempfile::TempDir, MembershipStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = MembershipStore::new(dir.path().join("worker/identity"));
    (dir, store)
}

#[test]
fn joining_twice_gives_the_same_node() {
    let (_dir, store) = store();
    let authority = authority();
    assert!(matches!(store.load().unwrap(), NodeMembership::NotMember));
    let key = store.ensure_key().unwrap();
    assert_eq!(store.ensure_key().unwrap().pem(), key.pem());
    assert!(matches!(
        store.load().unwrap(),
        NodeMembership::Joining { why: IncompleteMembership::Missing(_), .. }
    ));
    for _ in 0..2 {
        let joined = join(&store, &authority);
        assert_eq!(joined.identity().id(), key.node_id().unwrap().to_string());
        let (credentials, roots) = member(&store);
        assert_eq!(credentials.to_pem(), joined.to_pem());
        assert_eq!(roots.digests(), [authority.digest()]);
    }
    for file in FILES {
        assert_eq!(fs::metadata(store.dir.join(file)).unwrap().mode() & 0o7777, 0o600);
    }
    assert_eq!(fs::metadata(&store.dir).unwrap().mode() & 0o7777, 0o700);
    assert_eq!(fs::read_dir(&store.dir).unwrap().count(), FILES.len());
}

#[test]
fn a_certificate_is_renewed_under_the_same_key_and_roots() {
    let (_dir, store) = store();
    let authority = authority();
    let first = join(&store, &authority);
    let roots_written = fs::metadata(store.path(&ROOTS)).unwrap().ino();
    let longer = sign(&authority, first.key(), 2 * MONTH);
    let renewed = store.complete(&member(&store).1, &longer).unwrap();
    assert_eq!(renewed.identity(), first.identity());
    assert!(renewed.expires_at() > first.expires_at());
    assert_eq!(member(&store).0.certificate_pem(), longer);
    assert_eq!(fs::metadata(store.path(&ROOTS)).unwrap().ino(), roots_written);
}

/// Also when it is killed between its two files.
#[test]
fn a_node_follows_the_replacement_of_its_authority() {
    let (_dir, store) = store();
    let old = authority();
    let first = join(&store, &old);
    let new = old.successor(SystemTime::now()).unwrap().without_predecessors();
    let before = fs::read(store.path(&ROOTS)).unwrap();
    for _ in 0..2 {
        store.complete(&new.roots(), &sign(&new, first.key(), MONTH)).unwrap();
        let (credentials, roots) = member(&store);
        assert_eq!((credentials.identity(), roots.digests()), (first.identity(), &[new.digest()][..]));
        write_private(&store.path(&ROOTS), &before).unwrap();
        assert_eq!(member(&store).1.digests(), [old.digest()]);
    }
}

#[test]
fn expired_certificate_keeps_the_identity() {
    let (_dir, store) = store();
    let authority = authority();
    let key = store.ensure_key().unwrap();
    store.complete(&authority.roots(), &sign(&authority, &key, Duration::ZERO)).unwrap();
    let (credentials, _) = member(&store);
    assert!(credentials.expires_at() <= SystemTime::now());
    assert_eq!(store.ensure_key().unwrap().pem(), key.pem());
}

/// Joining killed at each of its steps, and every file of a member cut at each of its bytes: the machine is a member,
/// or can join again and is the same node.
#[test]
fn interrupted_join_resumes_as_the_same_node() {
    let (_dir, store) = store();
    let authority = authority();
    let first = join(&store, &authority);
    let texts = FILES.map(|file| fs::read_to_string(store.dir.join(file)).unwrap());
    let restore = |file: usize| write_private(&store.dir.join(FILES[file]), texts[file].as_bytes()).unwrap();

    for missing in [&FILES[1..], &FILES[2..], &FILES[1..2]] {
        missing.iter().for_each(|file| fs::remove_file(store.dir.join(file)).unwrap());
        match store.load().unwrap() {
            NodeMembership::Joining { key, why: IncompleteMembership::Missing(_) } => {
                assert_eq!(key.pem(), first.key().pem())
            }
            other => panic!("wanted one that has begun, found {other:?}"),
        }
        assert_eq!(join(&store, &authority).identity(), first.identity());
        (0..FILES.len()).for_each(restore);
    }
    for file in [1, 2] {
        for cut in 0..texts[file].len() {
            fs::write(store.dir.join(FILES[file]), &texts[file][..cut]).unwrap();
            match store.load().unwrap() {
                NodeMembership::Joining { key, why: IncompleteMembership::Damaged { .. } } => {
                    assert_eq!(key.pem(), first.key().pem());
                }
                other => panic!("{} cut at {cut}: found {other:?}", FILES[file]),
            }
        }
        assert_eq!(join(&store, &authority).identity(), first.identity());
        (0..FILES.len()).for_each(restore);
    }
    // What a killed writer leaves beside the files means nothing.
    for file in FILES {
        fs::write(store.dir.join(format!(".{file}.partial")), "half").unwrap();
    }
    assert_eq!(member(&store).0.to_pem(), first.to_pem());
    assert_eq!(join(&store, &authority).identity(), first.identity());
}

/// Without its key a node cannot be what it was, and must not become another one by itself.
#[test]
fn damaged_key_is_reported_and_never_replaced() {
    let (_dir, store) = store();
    join(&store, &authority());
    let text = fs::read_to_string(store.path(&KEY)).unwrap();
    let body = text.lines().nth(2).unwrap().to_owned();
    for cut in 0..text.len() {
        fs::write(store.path(&KEY), &text[..cut]).unwrap();
        for refused in [store.load().unwrap_err(), store.ensure_key().unwrap_err()] {
            assert!(matches!(refused, NodeMembershipError::Key { .. }), "{refused}");
            assert!(!format!("{refused} {refused:?}").contains(&body));
        }
    }
    fs::remove_file(store.path(&KEY)).unwrap();
    for refused in [store.load().unwrap_err(), store.ensure_key().unwrap_err()] {
        assert!(refused.to_string().contains("is missing, but its certificate is there"), "{refused}");
    }
}

#[test]
fn newer_format_is_refused_unchanged() {
    let (_dir, store) = store();
    join(&store, &authority());
    for kind in [&KEY, &ROOTS, &CERTIFICATE] {
        let path = store.path(kind);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replacen(" 1 ", " 2 ", 1)).unwrap();
        let refused = store.load().unwrap_err();
        assert!(
            matches!(&refused, NodeMembershipError::UnsupportedFormat { path: named, found: 2 } if *named == path),
            "{refused}"
        );
        fs::write(&path, text).unwrap();
    }
    member(&store);
}

#[test]
fn key_readable_by_others_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (_dir, store) = store();
    join(&store, &authority());
    fs::set_permissions(store.path(&KEY), fs::Permissions::from_mode(0o644)).unwrap();
    let refused = store.load().unwrap_err();
    assert!(matches!(refused, NodeMembershipError::File(FileError::InsecureMode { .. })), "{refused}");
}

#[test]
fn certificates_that_are_not_this_nodes_are_not_stored() {
    let (_dir, store) = store();
    let (ours, theirs) = (authority(), authority());
    let key = store.ensure_key().unwrap();
    let named = |role, id: &str| {
        let identity = Identity::new("c1x", role, id).unwrap();
        ours.issue_for(&identity, key.clone(), SystemTime::now()).unwrap().certificate_pem().to_owned()
    };
    let own_id = key.node_id().unwrap().to_string();
    let other_key = PrivateKey::generate().unwrap();
    let of_another_key = sign(&ours, &other_key, MONTH);
    let of_another_authority = sign(&theirs, &key, MONTH);
    for bad in [
        of_another_key.as_str(),
        &of_another_authority,
        &named(Role::Worker, "0000000000000000000000001"),
        &named(Role::User, &own_id),
        "",
    ] {
        let refused = store.complete(&ours.roots(), bad).unwrap_err();
        assert!(matches!(refused, NodeMembershipError::Rejected(_)), "{refused}");
        assert!(matches!(
            store.load().unwrap(),
            NodeMembership::Joining { why: IncompleteMembership::Missing(_), .. }
        ));
    }
    store.complete(&ours.roots(), &named(Role::Worker, &own_id)).unwrap();
    member(&store);
    // One that was put there by hand is seen when it is read.
    store.write(&CERTIFICATE, &of_another_key).unwrap();
    assert!(matches!(
        store.load().unwrap(),
        NodeMembership::Joining { why: IncompleteMembership::Certificate(_), .. }
    ));
}

#[test]
fn concurrent_joins_create_one_key() {
    let (_dir, store) = store();
    let keys = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| store.ensure_key().unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(keys.iter().all(|key| key.pem() == keys[0].pem()));
}

#[test]
fn leaving_ends_the_membership_and_can_be_repeated() {
    let (_dir, store) = store();
    store.remove().unwrap();
    let authority = authority();
    let first = join(&store, &authority);
    for _ in 0..2 {
        store.remove().unwrap();
        assert!(matches!(store.load().unwrap(), NodeMembership::NotMember));
    }
    assert_ne!(join(&store, &authority).identity(), first.identity());
}
