use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

fn tcp(name: &str, address: &str) -> Context {
    let identity = Identity {
        ca: "-----BEGIN CERTIFICATE-----\nca\n".into(),
        certificate: "certificate".into(),
        key: PrivateKey("SECRET".into()),
    };
    let addresses = address.split(',').map(|address| address.parse().unwrap()).collect();
    Context { name: name.into(), target: Target::Tcp { addresses, identity }, life: 0 }
}

fn unix(name: &str) -> Context {
    Context { name: name.into(), target: Target::Unix { socket: "/run/warren/warren.sock".into() }, life: 0 }
}

fn written(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn the_file_is_found_as_the_environment_says() {
    let path = |set: &[(&str, &str)]| {
        let find = |name: &str| set.iter().find(|(known, _)| *known == name);
        Contexts::path(|name| find(name).map(|(_, value)| value.into()))
    };
    let home = ("HOME", "/home/a");
    assert_eq!(path(&[]), None);
    assert_eq!(path(&[home]), Some("/home/a/.config/warren/contexts.toml".into()));
    assert_eq!(path(&[home, ("XDG_CONFIG_HOME", "/x")]), Some("/x/warren/contexts.toml".into()));
    assert_eq!(path(&[home, ("XDG_CONFIG_HOME", "x")]), path(&[home]));
    assert_eq!(path(&[home, (FILE_VARIABLE, "/c.toml")]), Some("/c.toml".into()));
    assert_eq!(path(&[home, (FILE_VARIABLE, "")]), path(&[home]));
}

#[test]
fn a_context_that_is_written_is_read_again_also_when_written_twice() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("new/contexts.toml");
    for context in [tcp("a", "10.0.0.7:8080"), unix("b"), unix("b"), tcp("a", "[::1]:9")] {
        Contexts::ensure(&file, context).unwrap();
    }
    let found = Contexts::load(&file).unwrap();
    assert_eq!(found.current.as_deref(), Some("a"));
    assert_eq!(found.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(found.get("a"), Some(&tcp("a", "[::1]:9")));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    for _ in 0..2 {
        Contexts::remove(&file, "a").unwrap();
        let found = Contexts::load(&file).unwrap();
        assert_eq!((found.current.clone(), found.names().collect()), (None, vec!["b"]));
    }
}

#[test]
fn writers_at_the_same_time_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    std::thread::scope(|scope| {
        for i in 0..8 {
            let file = &file;
            scope.spawn(move || Contexts::ensure(file, unix(&format!("c{i}"))).unwrap());
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

    let error = empty.select(Wish::default()).unwrap_err().to_string();
    let wanted = "no cluster context: run `warren manager init` on this machine or pass --manager/--context";
    assert!(error.starts_with(wanted), "{error}");
    let here = empty.select(Wish { socket: socket(), ..Wish::default() }).unwrap();
    assert_eq!(here, Target::Unix { socket: "/s".into() });
    // An address alone does not say who we are.
    assert!(matches!(
        empty.select(Wish { managers: other(), socket: socket(), context: None }),
        Err(Error::NoContext { .. })
    ));

    Contexts::ensure(&file, unix("here")).unwrap();
    Contexts::ensure(&file, tcp("far", "far:8080")).unwrap();
    let contexts = Contexts::load(&file).unwrap();
    let select = |context: Option<&str>, managers| {
        contexts.select(Wish { context: context.map(str::to_owned), managers, socket: socket() })
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
fn a_file_that_is_not_one_is_refused_without_showing_its_text() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    let check = |text: &str, wanted: &str| {
        written(&file, text);
        let error = Contexts::load(&file).unwrap_err().to_string();
        assert!(error.contains(wanted) && !error.contains("SECRET"), "{error}");
        // What cannot be understood is not overwritten either.
        assert!(Contexts::ensure(&file, unix("b")).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    };
    check("current = 1", "line 1");
    check("\n[[contexts]]\nname = \"a\"\nkey = \"SECRET", "line 4");
    check("[[contexts]]\nname = \"a\"\npassword = \"SECRET\"", "line 3: unknown field");
    let needs = "context \"a\" needs either socket, or addresses, ca, certificate and key";
    check("[[contexts]]\nname = \"a\"\nkey = \"SECRET\"", needs);
    check("[[contexts]]\nname = \"a\"\nsocket = \"/s\"\nkey = \"SECRET\"", needs);
    let twice = "[[contexts]]\nname = \"a\"\nsocket = \"/s\"\n".repeat(2);
    check(&twice, "two contexts of the name \"a\"");
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
fn a_file_of_before_is_read_and_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    let identity = "ca = \"\"\"\n-----BEGIN CERTIFICATE-----\nca\n\"\"\"\n\
                    certificate = \"certificate\"\nkey = \"SECRET\"\n";
    let old = format!("current = \"a\"\n[[contexts]]\nname = \"a\"\naddress = \"10.0.0.7:8080\"\n{identity}");
    written(&file, &old);
    assert_eq!(Contexts::load(&file).unwrap().get("a"), Some(&tcp("a", "10.0.0.7:8080")));
    let more: Vec<_> = ["10.0.0.8:8080", "10.0.0.7:8080"].map(|address| address.parse().unwrap()).into();
    let Target::Tcp { identity, .. } = tcp("a", "a:1").target else { panic!() };
    assert!(Contexts::follow(&file, "a", &identity, (&more, 0)).unwrap());
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("addresses = [\"10.0.0.8:8080\", \"10.0.0.7:8080\"]"), "{text}");
    assert!(!text.contains("address ="), "{text}");
    assert_eq!(Contexts::load(&file).unwrap().get("a"), Some(&tcp("a", "10.0.0.8:8080,10.0.0.7:8080")));
    written(&file, &old.replace("10.0.0.7:8080", "10.0.0.7"));
    let error = Contexts::load(&file).unwrap_err().to_string();
    assert!(error.contains("context \"a\": \"10.0.0.7\" is not HOST:PORT"), "{error}");
}

#[test]
fn only_what_managers_say_otherwise_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    let managers = |text: &str| -> Vec<ManagerAddress> {
        text.split(',').filter(|text| !text.is_empty()).map(|text| text.parse().unwrap()).collect()
    };
    let Target::Tcp { identity, .. } = tcp("a", "a:1").target else { panic!() };
    let follow = |name: &str, identity: &Identity, text: &str| {
        Contexts::follow(&file, name, identity, (&managers(text), 1)).unwrap()
    };
    assert!(!follow("a", &identity, "a:1") && !file.exists());
    Contexts::ensure(&file, tcp("a", "a:1,b:2,c:3")).unwrap();
    Contexts::ensure(&file, unix("u")).unwrap();
    let before = fs::read_to_string(&file).unwrap();
    let other = Identity { ca: "of another cluster".into(), ..identity.clone() };
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
fn the_latest_life_of_the_cluster_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("contexts.toml");
    let Target::Tcp { identity, .. } = tcp("a", "a:1").target else { panic!() };
    Contexts::ensure(&file, tcp("a", "a:1")).unwrap();
    assert!(!fs::read_to_string(&file).unwrap().contains("life"), "nothing is known of it");
    for (life, changed, kept) in [(1, false, 0), (7, true, 7), (7, false, 7), (5, false, 7), (0, false, 7)] {
        assert_eq!(Contexts::follow(&file, "a", &identity, (&[], life)).unwrap(), changed, "{life}");
        let known = Contexts::load(&file).unwrap();
        assert_eq!(known.get("a"), Some(&Context { life: kept, ..tcp("a", "a:1") }), "{life}");
    }
}
