//! `warren registry ...`.

use serde_json::{Value, json};

use crate::user::CliUser;

const LOGIN: [&str; 5] = ["registry", "login", "ghcr.io", "--username=ann", "--password-stdin"];

#[test]
fn login_is_stored_replaced_and_removed() {
    let person = CliUser::new();
    let ran = person.warren_with(&LOGIN, b"hunter2\n");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ghcr.io\n"), "{ran:?}");
    assert_eq!(ran.stderr, "nodes now pull from ghcr.io as ann\n");
    assert_eq!(person.manager.secret_bytes("ghcr.io").unwrap(), b"ann\nhunter2");
    let ran = person.warren_with(&LOGIN, b"other\r\n");
    assert_eq!(
        (ran.code, person.manager.secret_bytes("ghcr.io").unwrap()),
        (0, b"ann\nother".to_vec()),
        "{ran:?}"
    );

    let strict = ["registry", "login", "index.docker.io", "-u", "bob", "--password-stdin", "--token-only"];
    let ran = person.warren_with(&strict, b"pw");
    assert_eq!(ran.stdout, "docker.io\n", "{ran:?}");
    assert_eq!(ran.stderr, "nodes now pull from docker.io as bob, and never get the password\n");
    assert_eq!(person.manager.secret_bytes("docker.io").unwrap(), b":token-only\nbob\npw");
    let shown: Value = serde_json::from_str(&person.ok(&["registry", "ls", "-o", "json"])).unwrap();
    assert_eq!((&shown[0]["host"], &shown[1]["user"]), (&json!("ghcr.io"), &json!("bob")));
    assert_eq!((&shown[0]["tokenOnly"], &shown[1]["tokenOnly"]), (&json!(false), &json!(true)));
    assert!(!shown.to_string().contains("other") && shown[0].get("size").is_none(), "{shown}");
    let listed = person.ok(&["registry", "ls"]);
    assert!(listed.lines().nth(1).unwrap().starts_with("ghcr.io     ann"), "{listed}");
    assert_eq!(person.ok(&["registry", "rm", "ghcr.io", "index.docker.io"]), "ghcr.io\ndocker.io\n");
    person.fails(3, &["registry", "rm", "ghcr.io"]);
}

#[test]
fn password_prompt_does_not_echo() {
    let person = CliUser::new();
    let login = ["registry", "login", "ghcr.io", "--username=ann"];
    let typed = person.type_to(&login, "Password of ann at ghcr.io: ", b"hunterx\x7f2\r");
    assert_eq!(typed.code, 0, "{typed:?}");
    assert_eq!(person.manager.secret_bytes("ghcr.io").unwrap(), b"ann\nhunter2");
    assert!(!typed.screen.contains("hunter") && typed.is_echo_on, "{typed:?}");
    // After an interruption the terminal is as it was.
    let typed = person.type_to(&login, "Password of ann at ghcr.io: ", b"wrong\x03");
    assert!(typed.code == 1 && typed.is_echo_on && typed.screen.contains("why: interrupted"), "{typed:?}");
    assert_eq!(person.manager.secret_bytes("ghcr.io").unwrap(), b"ann\nhunter2");
}

#[test]
fn password_flag_is_refused() {
    let person = CliUser::new();
    for flag in ["--password=hunter2", "--password", "-p"] {
        let output = person.fails(2, &["registry", "login", "ghcr.io", "--username=ann", flag]);
        let flag = flag.split('=').next().unwrap();
        let expected = format!(
            "error: there is no {flag} of `warren registry login`\n  \
             why: a password on the command line is visible to every user of this machine and kept in the \
             history\n  \
             try: use --password-stdin, or neither flag to be prompted\n"
        );
        assert_eq!(output, expected);
    }
    let text = person.fails(2, &LOGIN[..4]);
    assert!(text.contains("why: no password given, and standard input is not a terminal\n"), "{text}");
    assert!(text.contains("try: use --password-stdin\n"), "{text}");
    let refused = |input: &[u8], why: &str| {
        let ran = person.warren_with(&LOGIN, input);
        assert!(ran.code == 2 && ran.stderr.contains(why), "{ran:?}");
    };
    refused(b"\n", "the password is empty");
    refused(b"\xff", "the password is not valid UTF-8");
    refused(&[b'a'; 100_000], "the password has more than 65536 bytes");
    let printed =
        person.fails(2, &["registry", "login", "https://ghcr.io", "--username=ann", "--password-stdin"]);
    assert!(printed.contains("give only HOST[:PORT], like ghcr.io"), "{printed}");
    let said = person.fails(2, &["registry", "login", "ghcr.io", "--username=a:b", "--password-stdin"]);
    assert!(said.contains("a user name must not contain ':'"), "{said}");
    person.fails(2, &["registry", "login", "ghcr.io", "--password-stdin"]);
    assert_eq!(person.manager.secret_bytes("ghcr.io"), None);
    let said = person.fails(2, &["service", "create", "web", "--image=a", "--registry-credential=x"]);
    assert!(said.contains("try: store them once with `warren registry login HOST`\n"), "{said}");
}
