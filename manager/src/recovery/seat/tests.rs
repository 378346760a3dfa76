use super::*;
use crate::ca::Keys;

fn identity() -> ManagerIdentity {
    let content_key = "0123456789abcdef".parse().unwrap();
    let (cluster, manager) = (warren_types::Id(9), warren_types::Id(3));
    ManagerIdentity { cluster: ClusterId(cluster), manager: ManagerId(manager), content_key }
}

/// The keys of a manager in `dir`, with a node, and its place.
fn founded(dir: &Path) -> (Keys, Seat) {
    let now = std::time::SystemTime::now();
    let keys = Keys::open(dir, true, now).unwrap();
    keys.ensure_agent(|| Ok(NodeId(warren_types::Id(7))), now).unwrap();
    let seat = Seat::first(keys.identity());
    take(dir, &seat).unwrap();
    (keys, seat)
}

#[test]
fn a_directory_says_how_far_its_machine_is() {
    let dir = tempfile::tempdir().unwrap();
    let look = || super::look(dir.path()).unwrap();
    assert!(matches!(super::look(&dir.path().join("none")).unwrap(), Standing::Nothing));
    assert!(matches!(look(), Standing::Nothing));
    let key = PrivateKey::generate().unwrap();
    files::write_private(&dir.path().join(JOIN_KEY_FILE), key.pem().as_bytes()).unwrap();
    assert!(matches!(look(), Standing::Begun(found) if found.pem() == key.pem()));
    // An answer that was written half-way is not a cluster of its own.
    let (_, first) = founded(dir.path());
    std::fs::remove_file(dir.path().join(FILE)).unwrap();
    assert!(matches!(look(), Standing::Begun(_)));
    let seat = Seat { founders: vec![1, 2], ..Seat::alone(3, first.identity) };
    take(dir.path(), &seat).unwrap();
    assert!(matches!(look(), Standing::Seated(found) if found == seat));
    for _ in 0..2 {
        let later = overtaken(dir.path(), &seat, 7).unwrap();
        assert_eq!(later, 7);
        assert!(matches!(look(), Standing::Overtaken(found, 7) if found == seat));
    }
    assert_eq!(overtaken(dir.path(), &seat, 5).unwrap(), 7, "the latest that was heard of counts");
    lose(dir.path(), &seat).unwrap();
    assert!(matches!(look(), Standing::Removed(found) if found == seat));
    take(dir.path(), &seat).unwrap();
    assert!(matches!(look(), Standing::Seated(found) if found == seat), "it joined anew");
}

#[test]
fn init_that_was_cut_off_at_any_step_is_resumed_as_the_same_manager() {
    let steps = [AUTHORITY_FILE, MANAGER_FILE, ADMIN_FILE, CONTENT_FILE];
    for cut in 0..=steps.len() {
        let dir = tempfile::tempdir().unwrap();
        begin_init(dir.path()).unwrap();
        let keys = Keys::open(dir.path(), true, std::time::SystemTime::now()).unwrap();
        steps[cut..].iter().for_each(|file| std::fs::remove_file(dir.path().join(file)).unwrap());
        assert!(
            matches!(look(dir.path()).unwrap(), Standing::InitPending),
            "cut before {:?}",
            steps.get(cut)
        );
        let again = Keys::open(dir.path(), true, std::time::SystemTime::now()).unwrap();
        assert_eq!(again.cluster == keys.cluster, cut >= 1, "cut before {:?}", steps.get(cut));
        assert_eq!(again.id == keys.id, cut >= 2, "cut before {:?}", steps.get(cut));
        take(dir.path(), &Seat::first(again.identity())).unwrap();
        for _ in 0..2 {
            finish_init(dir.path()).unwrap();
            assert!(!is_init_pending(dir.path()));
            assert!(matches!(look(dir.path()).unwrap(), Standing::Seated(_)));
        }
    }
}

#[test]
fn directory_of_a_manager_without_the_member_file_is_refused() {
    for file in [
        "ca.pem",
        "content.key",
        "manager.pem",
        "admin.pem",
        "roots.pem",
        "raft.redb",
        "raft.sled",
        "keyring",
        "member.key",
        "snapshots",
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(file), "x").unwrap();
        let error = look(dir.path()).unwrap_err().to_string();
        assert!(error.contains("/member is missing") && error.contains(file), "{error}");
        for way_back in ["restore it", "join again", "`warren manager restore`"] {
            assert!(error.contains(way_back), "{error}");
        }
        // What a log says that a key for joining does not.
        let key = PrivateKey::generate().unwrap();
        files::write_private(&dir.path().join(JOIN_KEY_FILE), key.pem().as_bytes()).unwrap();
        begin_init(dir.path()).unwrap();
        let is_stored = !file.ends_with(".pem") && file != "content.key";
        assert_eq!(look(dir.path()).is_err(), is_stored, "{file}");
    }
}

#[test]
fn the_file_is_what_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let mut seat = Seat { founders: vec![1], ..Seat::alone(3, identity()) };
    let told = || std::fs::read_to_string(dir.path().join(FILE)).unwrap();
    take(dir.path(), &seat).unwrap();
    let before = told();
    let (cluster, manager) = (identity().cluster, identity().manager);
    assert_eq!(
        before,
        format!(
            "version = 1\nmember = 3\nfounders = [1]\ncluster = \"{cluster}\"\nmanager = \"{manager}\"\n\
             content_key = \"0123456789abcdef\"\n"
        )
    );
    let node = NodeId(warren_types::Id(7));
    for _ in 0..2 {
        note_node(dir.path(), node).unwrap();
        assert_eq!(told(), format!("{before}node = \"{node}\"\n"));
    }
    let address = "10.0.0.7:8080".parse().unwrap();
    seat.managers.push(Introduced { member: 1, id: ManagerId(warren_types::Id(11)), address });
    take(dir.path(), &seat).unwrap();
    let id = ManagerId(warren_types::Id(11));
    let managers = format!("\n[[managers]]\nmember = 1\nid = \"{id}\"\naddress = \"10.0.0.7:8080\"\n");
    assert_eq!(told(), before + &managers);
    assert!(matches!(look(dir.path()).unwrap(), Standing::Seated(found) if found == seat));
}

#[test]
fn a_removed_manager_keeps_no_key_of_the_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, seat) = founded(dir.path());
    let roots = keys.authority.roots();
    for _ in 0..2 {
        lose(dir.path(), &seat).unwrap();
        for file in [AUTHORITY_FILE, ADMIN_FILE, CONTENT_FILE] {
            assert!(!dir.path().join(file).exists(), "{file}");
        }
        let (_, trusted) = crate::ca::agent_in(dir.path()).unwrap().expect("it has a node to clear");
        assert_eq!(trusted.pem(), roots.pem());
    }
}

#[test]
fn removal_is_not_undone_by_a_node_that_is_noted_at_the_same_time() {
    let (keys, tried) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, seat) = founded(keys.path());
    let certificate = std::fs::read(keys.path().join(MANAGER_FILE)).unwrap();
    for number in 0..32 {
        let dir = tried.path().join(number.to_string());
        files::ensure_private_dir(&dir).unwrap();
        files::write_private(&dir.join(MANAGER_FILE), &certificate).unwrap();
        take(&dir, &seat).unwrap();
        let begin = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                note_node(&dir, NodeId(warren_types::Id(8))).unwrap();
            });
            begin.wait();
            lose(&dir, &seat).unwrap();
        });
        assert!(matches!(super::look(&dir).unwrap(), Standing::Removed(_)), "try {number}");
    }
}

#[test]
fn keys_are_kept_unless_the_certificate_is_that_of_the_removed_manager() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, seat) = founded(dir.path());
    let (_, removed) = founded(other.path());
    lose(other.path(), &removed).unwrap();
    let kept =
        || [AUTHORITY_FILE, ADMIN_FILE, CONTENT_FILE].iter().all(|file| dir.path().join(file).exists());
    // That of another manager, which was removed.
    std::fs::copy(other.path().join(FILE), dir.path().join(FILE)).unwrap();
    assert!(matches!(look(dir.path()).unwrap(), Standing::Removed(found) if found == removed));
    for _ in 0..2 {
        let refused = drop_keys(dir.path(), &removed).unwrap_err();
        assert!(matches!(refused, SeatError::NotRemoved { .. }), "{refused}");
        let refused = lose(dir.path(), &seat).unwrap_err();
        assert!(matches!(refused, SeatError::Replaced { .. }), "{refused}");
        assert!(kept());
    }
    take(dir.path(), &seat).unwrap();
    let number_alone = Seat { member: 2, ..seat.clone() };
    assert!(matches!(lose(dir.path(), &number_alone).unwrap_err(), SeatError::Replaced { .. }));
    std::fs::remove_file(dir.path().join(MANAGER_FILE)).unwrap();
    assert!(matches!(lose(dir.path(), &seat).unwrap_err(), SeatError::NotRemoved { .. }));
    assert!(
        kept()
            && matches!(look(dir.path()).unwrap(), Standing::Seated(found) if found.owner() == seat.owner())
    );
}

#[test]
fn a_file_that_is_damaged_or_newer_is_refused_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let text = |member: u64, founders: &str, content_key: &str| {
        let (cluster, manager) = (identity().cluster, identity().manager);
        format!(
            "version = 1\nmember = {member}\nfounders = {founders}\ncluster = \"{cluster}\"\n\
             manager = \"{manager}\"\ncontent_key = \"{content_key}\"\n"
        )
    };
    for (text, why) in [
        ("version = 2\nlater = true\n", "has format version 2"),
        ("version = 1\nmember = 3\nfounders = [1]\nlater = 1\n", "unknown field `later`"),
        ("version = 1\nmember = 3\nfounders = [1]\n", "missing field `cluster`"),
        (&text(0, "[1]", "0123456789abcdef"), "0 is nobody's id"),
        (&text(3, "[]", "0123456789abcdef"), "0 is nobody's id"),
        (&text(3, "[1]", "0123"), "is not a fingerprint"),
        ("membr", "is damaged"),
    ] {
        files::write_private(&path, text.as_bytes()).unwrap();
        let error = look(dir.path()).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(&path.display().to_string()), "{error}");
    }
}
