//! `warren registry ...`: who the machines are to registries.

use serde_json::{Value, json};

use crate::person::Person;

const LOGIN: [&str; 5] = ["registry", "login", "ghcr.io", "--username=ann", "--password-stdin"];

#[test]
fn a_login_is_kept_replaced_and_forgotten() {
    let person = Person::new();
    let ran = person.warren_with(&LOGIN, b"hunter2\n");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ghcr.io\n"), "{ran:?}");
    assert_eq!(ran.stderr, "the machines pull from ghcr.io as ann from now on\n");
    assert_eq!(person.manager.held("ghcr.io").unwrap(), b"ann\nhunter2");
    let ran = person.warren_with(&LOGIN, b"other\r\n");
    assert_eq!((ran.code, person.manager.held("ghcr.io").unwrap()), (0, b"ann\nother".to_vec()), "{ran:?}");

    let ran =
        person.warren_with(&["registry", "login", "index.docker.io", "-u", "bob", "--password-stdin"], b"pw");
    assert_eq!(ran.stdout, "docker.io\n", "{ran:?}");
    let shown: Value = serde_json::from_str(&person.ok(&["registry", "ls", "-o", "json"])).unwrap();
    assert_eq!((&shown[0]["host"], &shown[1]["user"]), (&json!("ghcr.io"), &json!("bob")));
    assert!(!shown.to_string().contains("other") && shown[0].get("size").is_none(), "{shown}");
    let listed = person.ok(&["registry", "ls"]);
    assert!(listed.lines().nth(1).unwrap().starts_with("ghcr.io     ann"), "{listed}");
    assert_eq!(person.ok(&["registry", "rm", "ghcr.io", "index.docker.io"]), "ghcr.io\ndocker.io\n");
    person.fails(3, &["registry", "rm", "ghcr.io"]);
}

#[test]
fn a_password_is_asked_for_without_showing_it() {
    let person = Person::new();
    let login = ["registry", "login", "ghcr.io", "--username=ann"];
    let typed = person.type_to(&login, "Password of ann at ghcr.io: ", b"hunterx\x7f2\r");
    assert_eq!(typed.code, 0, "{typed:?}");
    assert_eq!(person.manager.held("ghcr.io").unwrap(), b"ann\nhunter2");
    assert!(!typed.screen.contains("hunter") && typed.echoes, "{typed:?}");
    // Whoever does not want to any more gets the terminal back as it was.
    let typed = person.type_to(&login, "Password of ann at ghcr.io: ", b"wrong\x03");
    assert!(typed.code == 1 && typed.echoes && typed.screen.contains("why: it was interrupted"), "{typed:?}");
    assert_eq!(person.manager.held("ghcr.io").unwrap(), b"ann\nhunter2");
}

#[test]
fn a_password_has_one_way_in() {
    let person = Person::new();
    for flag in ["--password=hunter2", "--password", "-p"] {
        let said = person.fails(2, &["registry", "login", "ghcr.io", "--username=ann", flag]);
        let flag = flag.split('=').next().unwrap();
        let wanted = format!(
            "error: there is no {flag} of `warren registry login`\n  \
             why: a password on the command line is seen by everybody on this machine and kept by the shell\n  \
             try: give --password-stdin, or neither to be asked for it\n"
        );
        assert_eq!(said, wanted);
    }
    let said = person.fails(2, &LOGIN[..4]);
    assert!(said.contains("why: the password is asked for, and standard input is no terminal\n"), "{said}");
    assert!(said.contains("try: give --password-stdin and pipe it in\n"), "{said}");
    let refused = |input: &[u8], why: &str| {
        let ran = person.warren_with(&LOGIN, input);
        assert!(ran.code == 2 && ran.stderr.contains(why), "{ran:?}");
    };
    refused(b"\n", "the password is empty");
    refused(b"\xff", "the password is no text in UTF-8");
    refused(&[b'a'; 100_000], "the password has more than 65536 bytes");
    let said =
        person.fails(2, &["registry", "login", "https://ghcr.io", "--username=ann", "--password-stdin"]);
    assert!(said.contains("give only HOST[:PORT], like ghcr.io"), "{said}");
    let said = person.fails(2, &["registry", "login", "ghcr.io", "--username=a:b", "--password-stdin"]);
    assert!(said.contains("a user has no ':'"), "{said}");
    person.fails(2, &["registry", "login", "ghcr.io", "--password-stdin"]);
    assert_eq!(person.manager.held("ghcr.io"), None);
    let said = person.fails(2, &["service", "create", "web", "--image=a", "--registry-credential=x"]);
    assert!(said.contains("try: give them once with `warren registry login HOST`\n"), "{said}");
}
