use super::*;

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
    files::write_private(&dir.path().join(AUTHORITY_FILE), b"x").unwrap();
    assert!(matches!(look(), Standing::Begun(_)));
    let seat = Seat { member: 3, founders: vec![1, 2], managers: Vec::new() };
    take(dir.path(), &seat).unwrap();
    assert!(matches!(look(), Standing::Seated(found) if found == seat));
    for _ in 0..2 {
        let later = overtaken(dir.path(), &seat, 7).unwrap();
        assert_eq!(later, 7);
        assert!(matches!(look(), Standing::Overtaken(found, 7) if found == seat));
    }
    assert_eq!(overtaken(dir.path(), &seat, 5).unwrap(), 7, "the latest that was heard of counts");
    lose(dir.path(), &seat).unwrap();
    assert!(matches!(look(), Standing::Removed));
    take(dir.path(), &seat).unwrap();
    assert!(matches!(look(), Standing::Seated(found) if found == seat), "it joined anew");
}

#[test]
fn a_cluster_from_before_there_were_several_has_its_first_manager() {
    let dir = tempfile::tempdir().unwrap();
    files::write_private(&dir.path().join(AUTHORITY_FILE), b"x").unwrap();
    assert!(matches!(look(dir.path()).unwrap(), Standing::Seated(seat) if seat == Seat::first()));
}

#[test]
fn the_file_is_what_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let mut seat = Seat { member: 3, founders: vec![1], managers: Vec::new() };
    let told = || std::fs::read_to_string(dir.path().join(FILE)).unwrap();
    take(dir.path(), &seat).unwrap();
    let before = told();
    assert_eq!(before, "version = 1\nmember = 3\nfounders = [1]\n");
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
    let now = std::time::SystemTime::now();
    let keys = crate::ca::Keys::open(dir.path(), true, now).unwrap();
    keys.ensure_agent(|| Ok(warren_types::NodeId(warren_types::Id(7))), now).unwrap();
    crate::ca::content_key(dir.path(), &warren_core::State::new(), true).unwrap();
    let roots = keys.authority.roots();
    take(dir.path(), &Seat::first()).unwrap();
    for _ in 0..2 {
        lose(dir.path(), &Seat::first()).unwrap();
        for file in [AUTHORITY_FILE, ADMIN_FILE, CONTENT_FILE] {
            assert!(!dir.path().join(file).exists(), "{file}");
        }
        let (_, trusted) = crate::ca::agent_in(dir.path()).unwrap().expect("it has a node to clear");
        assert_eq!(trusted.pem(), roots.pem());
    }
}

#[test]
fn a_file_that_is_damaged_or_newer_is_refused_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    for (text, why) in [
        ("version = 2\nlater = true\n", "has format version 2"),
        ("version = 1\nmember = 3\nfounders = [1]\nlater = 1\n", "unknown field `later`"),
        ("version = 1\nmember = 0\nfounders = [1]\n", "0 is nobody's id"),
        ("version = 1\nmember = 3\nfounders = []\n", "0 is nobody's id"),
        ("membr", "is damaged"),
    ] {
        files::write_private(&path, text.as_bytes()).unwrap();
        let error = look(dir.path()).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(&path.display().to_string()), "{error}");
    }
}
