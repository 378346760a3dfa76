use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

fn tcp(name: &str, address: &str) -> ClientContext {
    let identity = ClientIdentity {
        ca: "-----BEGIN CERTIFICATE-----\nca\n".into(),
        certificate: "certificate".into(),
        key: PrivateKeyPem("SECRET".into()),
    };
    let addresses = address.split(',').map(|address| address.parse().unwrap()).collect();
    ClientContext { name: name.into(), target: ClientTarget::Tcp { addresses, identity }, incarnation: 0 }
}

fn unix(name: &str) -> ClientContext {
    ClientContext {
        name: name.into(),
        target: ClientTarget::Unix { socket: "/run/warren/warren.sock".into() },
        incarnation: 0,
    }
}

fn written(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn contexts_path_follows_environment() {
    let path = |set: &[(&str, &str)]| {
        let find = |name: &str| set.iter().find(|(known, _)| *known == name);
        Contexts::path(|name| find(name).map(|(_, value)| value.into()))
    };
    let home = ("HOME", "/home/a");
    assert_eq!(path(&[]), None);
    assert_eq!(path(&[home]), Some("/home/a/.config/warren/contexts.toml".into()));
    assert_eq!(path(&[home, ("XDG_CONFIG_HOME", "/x")]), Some("/x/warren/contexts.toml".into()));
    assert_eq!(path(&[home, ("XDG_CONFIG_HOME", "x")]), path(&[home]));
    assert_eq!(path(&[home, (CONTEXTS_VARIABLE, "/c.toml")]), Some("/c.toml".into()));
    assert_eq!(path(&[home, (CONTEXTS_VARIABLE, "")]), path(&[home]));
}

#[test]
fn context_round_trips_twice() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("new/contexts.toml");
    for context in [tcp("a", "10.0.0.7:8080"), unix("b"), unix("b"), tcp("a", "[::1]:9")] {
        Contexts::upsert(&file, context).unwrap();
    }
    let found = Contexts::load(&file).unwrap();
    assert_eq!(found.current.as_deref(), Some("a"));
    assert_eq!(found.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(found.get("a"), Some(&tcp("a", "[::1]:9")));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    for name in ["b", "a", "a"] {
        Contexts::set_current(&file, name).unwrap();
        assert_eq!(Contexts::load(&file).unwrap().current.as_deref(), Some(name));
    }
    Contexts::remove(&file, "a").unwrap();
    let found = Contexts::load(&file).unwrap();
    assert_eq!((found.current.clone(), found.names().collect()), (None, vec!["b"]));
    for unknown in [Contexts::remove(&file, "a"), Contexts::set_current(&file, "a")] {
        assert!(matches!(unknown, Err(Error::UnknownContext { .. })), "{unknown:?}");
    }
    assert_eq!(Contexts::load(&file).unwrap(), found);
}

#[test]
fn writers_at_the_same_time_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    std::thread::scope(|scope| {
        for i in 0..8 {
            let file = &file;
            scope.spawn(move || Contexts::upsert(file, unix(&format!("c{i}"))).unwrap());
        }
    });
    assert_eq!(Contexts::load(&file).unwrap().names().count(), 8);
}

#[test]
fn the_current_context_is_used_unless_another_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    let socket = || Some(PathBuf::from("/s"));
    let other = || vec!["other:1".parse().unwrap(), "another:2".parse().unwrap()];
    let empty = Contexts::load(&file).unwrap();

    let error = empty.select(TargetSelection::default()).unwrap_err().to_string();
    let expected =
        "no cluster context: run `warren manager init` on this machine or pass --manager/--context";
    assert!(error.starts_with(expected), "{error}");
    let here = empty.select(TargetSelection { socket: socket(), ..TargetSelection::default() }).unwrap();
    assert_eq!(here, ClientTarget::Unix { socket: "/s".into() });
    // An address alone does not say who we are.
    assert!(matches!(
        empty.select(TargetSelection { managers: other(), socket: socket(), context: None }),
        Err(Error::NoContext { .. })
    ));

    Contexts::upsert(&file, unix("here")).unwrap();
    Contexts::upsert(&file, tcp("far", "far:8080")).unwrap();
    let contexts = Contexts::load(&file).unwrap();
    let select = |context: Option<&str>, managers| {
        contexts.select(TargetSelection { context: context.map(str::to_owned), managers, socket: socket() })
    };
    assert_eq!(select(None, vec![]).unwrap(), tcp("far", "far:8080").target);
    assert_eq!(select(Some("here"), vec![]).unwrap(), unix("here").target);
    assert_eq!(select(None, other()).unwrap(), tcp("far", "other:1,another:2").target);
    let error = select(Some("here"), other()).unwrap_err().to_string();
    assert!(error.starts_with("context \"here\" has no certificate"), "{error}");
    let error = select(Some("x"), vec![]).unwrap_err().to_string();
    assert!(error.ends_with("it has: here, far"), "{error}");
}

#[test]
fn invalid_file_is_refused_without_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    let check = |text: &str, expected: &str| {
        written(&file, text);
        let error = Contexts::load(&file).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("SECRET"), "{error}");
        // What cannot be understood is not overwritten either.
        assert!(Contexts::upsert(&file, unix("b")).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    };
    check("current = 1", "line 1");
    check("\n[[contexts]]\nname = \"a\"\nkey = \"SECRET", "line 4");
    check("[[contexts]]\nname = \"a\"\npassword = \"SECRET\"", "line 3: unknown field");
    let needs = "context \"a\" needs either socket, or addresses, ca, certificate and key";
    check("[[contexts]]\nname = \"a\"\nkey = \"SECRET\"", needs);
    check("[[contexts]]\nname = \"a\"\nsocket = \"/s\"\nkey = \"SECRET\"", needs);
    let twice = "[[contexts]]\nname = \"a\"\nsocket = \"/s\"\n".repeat(2);
    check(&twice, "two contexts with the name \"a\"");
}

#[test]
fn a_file_that_others_may_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    written(&file, "");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let error = Contexts::load(&file).unwrap_err().to_string();
    assert!(error.contains("chmod 600"), "{error}");
}

#[test]
fn keys_are_not_shown() {
    assert!(!format!("{:?}", tcp("a", "a:1")).contains("SECRET"));
}

#[test]
fn old_file_format_is_read_and_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    let identity = "ca = \"\"\"\n-----BEGIN CERTIFICATE-----\nca\n\"\"\"\n\
                    certificate = \"certificate\"\nkey = \"SECRET\"\n";
    let old = format!("current = \"a\"\n[[contexts]]\nname = \"a\"\naddress = \"10.0.0.7:8080\"\n{identity}");
    written(&file, &old);
    assert_eq!(Contexts::load(&file).unwrap().get("a"), Some(&tcp("a", "10.0.0.7:8080")));
    let more: Vec<_> = ["10.0.0.8:8080", "10.0.0.7:8080"].map(|address| address.parse().unwrap()).into();
    let ClientTarget::Tcp { identity, .. } = tcp("a", "a:1").target else { panic!() };
    assert!(Contexts::update_addresses(&file, "a", &identity, (&more, 0)).unwrap());
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("addresses = [\"10.0.0.8:8080\", \"10.0.0.7:8080\"]"), "{text}");
    assert!(!text.contains("address ="), "{text}");
    assert_eq!(Contexts::load(&file).unwrap().get("a"), Some(&tcp("a", "10.0.0.8:8080,10.0.0.7:8080")));
    written(&file, &old.replace("10.0.0.7:8080", "10.0.0.7"));
    let error = Contexts::load(&file).unwrap_err().to_string();
    assert!(error.contains("context \"a\": \"10.0.0.7\" is not HOST:PORT"), "{error}");
}

#[test]
fn only_changed_addresses_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    let managers = |text: &str| -> Vec<ManagerAddress> {
        text.split(',').filter(|text| !text.is_empty()).map(|text| text.parse().unwrap()).collect()
    };
    let ClientTarget::Tcp { identity, .. } = tcp("a", "a:1").target else { panic!() };
    let follow = |name: &str, identity: &ClientIdentity, text: &str| {
        Contexts::update_addresses(&file, name, identity, (&managers(text), 1)).unwrap()
    };
    assert!(!follow("a", &identity, "a:1") && !file.exists());
    Contexts::upsert(&file, tcp("a", "a:1,b:2,c:3")).unwrap();
    Contexts::upsert(&file, unix("u")).unwrap();
    let before = fs::read_to_string(&file).unwrap();
    let other = ClientIdentity { ca: "of another cluster".into(), ..identity.clone() };
    for (name, identity, text) in [
        ("a", &identity, "a:1,c:3,b:2"),
        ("a", &identity, ""),
        ("a", &other, "d:4"),
        ("u", &identity, "d:4"),
        ("x", &identity, "d:4"),
    ] {
        assert!(!follow(name, identity, text), "{name} {text}");
        assert_eq!(fs::read_to_string(&file).unwrap(), before, "{name} {text}");
    }
    // Somebody is changing it: the next command will say it again.
    let lock = fs::File::open(dir.path()).unwrap();
    lock.lock().unwrap();
    assert!(!follow("a", &identity, "d:4"));
    drop(lock);
    for (text, changed) in [("b:2,a:1,c:3", true), ("b:2,a:1,c:3", false), ("b:2,d:4", true)] {
        assert_eq!(follow("a", &identity, text), changed, "{text}");
        assert_eq!(Contexts::load(&file).unwrap().get("a"), Some(&tcp("a", text)));
    }
    assert_eq!(Contexts::load(&file).unwrap().current.as_deref(), Some("u"));
}

#[test]
fn latest_incarnation_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    let ClientTarget::Tcp { identity, .. } = tcp("a", "a:1").target else { panic!() };
    Contexts::upsert(&file, tcp("a", "a:1")).unwrap();
    assert!(!fs::read_to_string(&file).unwrap().contains("incarnation"), "it is unknown");
    for (incarnation, changed, kept) in
        [(1, false, 0), (7, true, 7), (7, false, 7), (5, false, 7), (0, false, 7)]
    {
        assert_eq!(
            Contexts::update_addresses(&file, "a", &identity, (&[], incarnation)).unwrap(),
            changed,
            "{incarnation}"
        );
        let known = Contexts::load(&file).unwrap();
        assert_eq!(
            known.get("a"),
            Some(&ClientContext { incarnation: kept, ..tcp("a", "a:1") }),
            "{incarnation}"
        );
    }
}

#[test]
fn identity_is_replaced_unless_another_process_holds_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    let ClientTarget::Tcp { identity, .. } = tcp("a", "a:1").target else { panic!() };
    let newest = ClientIdentity { certificate: "renewed".into(), ..identity.clone() };
    let replace = || Contexts::try_replace_identities(&file, |known| *known == identity, &newest).unwrap();
    assert!(replace() == 0 && !file.exists());
    Contexts::upsert(&file, tcp("a", "a:1")).unwrap();
    Contexts::upsert(&file, unix("u")).unwrap();
    let lock = fs::File::open(dir.path()).unwrap();
    lock.lock().unwrap();
    assert_eq!(replace(), 0, "and it does not wait");
    drop(lock);
    assert_eq!([replace(), replace()], [1, 0]);
    let known = Contexts::load(&file).unwrap();
    let Some(ClientContext { target: ClientTarget::Tcp { identity: known, .. }, .. }) = known.get("a") else {
        panic!("{known:?}")
    };
    assert_eq!(known.certificate, newest.certificate);
    let back = Contexts::replace_identities(&file, |known| *known == newest, &identity);
    assert_eq!(back.unwrap(), 1);
}

/// The golden file is never changed: a later format gets one of its own.
#[test]
fn file_of_version_1_is_readable() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    written(&file, include_str!("golden/contexts.1.toml"));
    let found = Contexts::load(&file).unwrap();
    assert_eq!(found.current.as_deref(), Some("far"));
    assert_eq!(found.names().collect::<Vec<_>>(), ["far", "here"]);
    let far = ClientContext { incarnation: 1_795_336_000, ..tcp("far", "10.0.0.7:8080,[fd00::8]:8080") };
    assert_eq!((found.get("far"), found.get("here")), (Some(&far), Some(&unix("here"))));
}
