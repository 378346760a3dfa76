use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

fn tcp(name: &str, address: &str) -> Context {
    let identity = Identity {
        ca: "-----BEGIN CERTIFICATE-----\nca\n".into(),
        certificate: "certificate".into(),
        key: PrivateKey("SECRET".into()),
    };
    Context { name: name.into(), target: Target::Tcp { address: address.parse().unwrap(), identity } }
}

fn unix(name: &str) -> Context {
    Context { name: name.into(), target: Target::Unix { socket: "/run/warren/warren.sock".into() } }
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
    let manager = || Some("other:1".parse().unwrap());
    let empty = Contexts::load(&file).unwrap();

    let error = empty.select(Wish::default()).unwrap_err().to_string();
    let wanted = "no cluster context: run `warren manager init` on this machine or pass --manager/--context";
    assert!(error.starts_with(wanted), "{error}");
    let here = empty.select(Wish { socket: socket(), ..Wish::default() }).unwrap();
    assert_eq!(here, Target::Unix { socket: "/s".into() });
    // An address alone does not say who we are.
    assert!(matches!(
        empty.select(Wish { manager: manager(), socket: socket(), context: None }),
        Err(Error::NoContext { .. })
    ));

    Contexts::ensure(&file, unix("here")).unwrap();
    Contexts::ensure(&file, tcp("far", "far:8080")).unwrap();
    let contexts = Contexts::load(&file).unwrap();
    let select = |context: Option<&str>, manager| {
        contexts.select(Wish { context: context.map(str::to_owned), manager, socket: socket() })
    };
    assert_eq!(select(None, None).unwrap(), tcp("far", "far:8080").target);
    assert_eq!(select(Some("here"), None).unwrap(), unix("here").target);
    assert_eq!(select(None, manager()).unwrap(), tcp("far", "other:1").target);
    let error = select(Some("here"), manager()).unwrap_err().to_string();
    assert!(error.starts_with("context \"here\" has no certificate"), "{error}");
    let error = select(Some("x"), None).unwrap_err().to_string();
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
    let needs = "context \"a\" needs either socket, or address, ca, certificate and key";
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
fn addresses_have_a_host_and_a_port() {
    for good in ["10.0.0.7:8080", "manager-1.example.org:1", "[::1]:8080", "localhost:65535"] {
        assert_eq!(good.parse::<Address>().map(|a| a.to_string()), Ok(good.to_owned()));
    }
    for bad in ["", "host", ":80", "host:", "host:0", "host:65536", "host:+80", "::1:80", "[]:80", "a b:80"] {
        assert!(bad.parse::<Address>().is_err(), "{bad}");
    }
}
